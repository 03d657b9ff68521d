// A long-lived connection: it reconnects indefinitely and leaves a stalled server.

import { readFileSync } from 'node:fs';

import {
  type NatsConnection, type NodeConnectionOptions, connect as dial, credsAuthenticator, nkeyAuthenticator,
} from '@nats-io/transport-node';

/**
 * Connects to NATS with settings from the environment, then options:
 *
 *     NATS_URL                       servers, comma-separated; default nats://127.0.0.1:4222
 *     NATS_CREDS, NATS_NKEY          a credentials file, or one with an nkey seed
 *     NATS_USER, NATS_PASSWORD       a user; default: the one in the first address
 *     NATS_CA, NATS_CERT, NATS_KEY   files for TLS
 *     NATS_INBOX_PREFIX              inbox prefix, for users that may not read all of _INBOX
 *
 * It waits for an unavailable server and reconnects after losses; log receives both.
 */
export async function connect(
  options: NodeConnectionOptions = {}, log: (line: string) => void = (line) => console.error(line),
): Promise<NatsConnection> {
  const servers = (process.env['NATS_URL'] || 'nats://127.0.0.1:4222').split(',');
  const plain = servers.map((server) => server.replace(/\/\/.*@/, '//'));
  log(`NATS: connecting to ${plain.join(', ')}`);
  const asked: NodeConnectionOptions = {
    ...identity(servers[0]!), servers: plain, waitOnFirstConnect: true, maxReconnectAttempts: -1, reconnectTimeWait: 250,
    pingInterval: 2_000, maxPingOut: 2, ignoreAuthErrorAbort: true, ...options,
  };
  // The client ignores schemes: without this it would do without TLS if the server does.
  if ([asked.servers].flat().some((server) => server && /^\s*tls:/i.test(server))) asked.tls ??= {};
  const waiting = setTimeout(() => log(
    'NATS: no server lets this service in; trying until one does: start tranche serve, or set NATS_URL; for its private '
    + 'server NATS_URL=$(cat DIR/nats-url), where DIR is its --data-dir'), 5_000);
  const nc = await dial(asked).finally(() => clearTimeout(waiting));
  log(`NATS: connected to ${nc.getServer()}`);
  void tell(nc, log);
  return nc;
}

// Credentials, inbox prefix and TLS files.
function identity(server: string): NodeConnectionOptions {
  const env = (name: string): string => process.env[`NATS_${name}`] ?? '';
  const options: NodeConnectionOptions = {};
  if (env('INBOX_PREFIX')) options.inboxPrefix = env('INBOX_PREFIX');
  if (env('CA') || env('CERT') || env('KEY')) {
    options.tls = { ...(env('CA') && { caFile: env('CA') }), ...(env('CERT') && { certFile: env('CERT') }),
      ...(env('KEY') && { keyFile: env('KEY') }) };
  }
  const { username, password } = new URL(server.includes('://') ? server : `nats://${server}`);
  if (env('CREDS')) options.authenticator = credsAuthenticator(readFileSync(env('CREDS')));
  else if (env('NKEY')) options.authenticator = nkeyAuthenticator(Buffer.from(readFileSync(env('NKEY'), 'utf8').trim()));
  else if (env('USER')) [options.user, options.pass] = [env('USER'), env('PASSWORD')];
  else if (username) [options.user, options.pass] = [decodeURIComponent(username), decodeURIComponent(password)];
  return options;
}

async function tell(nc: NatsConnection, log: (line: string) => void): Promise<void> {
  for await (const status of nc.status()) {
    if (status.type === 'disconnect') log(`NATS: the connection to ${status.server} is lost; reconnecting`);
    if (status.type === 'reconnect') log(`NATS: connected to ${status.server} again`);
    if (status.type === 'error') log(`NATS: ${status.error.message}`);
  }
}
