// Answers NATS's service protocol ($SRV.PING, INFO, STATS) and tranche.status.<endpoint>.

import type { Msg, NatsConnection } from '@nats-io/transport-node';

interface Who {
  readonly name: string;
  readonly id: string;
  readonly version: string;
  readonly metadata: Record<string, string>;
}

const QUEUE = 'q';

/** @internal Registers a service. Call the result to remove it. */
export function announce(
  nc: NatsConnection, who: Who, endpoints: () => string[], status: (name: string) => Record<string, unknown>,
  contract: (name: string) => object,
): () => void {
  const started = new Date().toISOString();
  const subject = (name: string): string => `tranche.status.${name}`;
  const verbs: Record<string, () => object> = {
    PING: () => ({}),
    INFO: () => ({
      description: '', endpoints: endpoints().map((name) => ({ name, subject: subject(name), queue_group: QUEUE })),
    }),
    STATS: () => ({
      started, endpoints: endpoints().map((name) => ({
        name, subject: subject(name), queue_group: QUEUE, num_requests: 0, num_errors: 0, last_error: '', processing_time: 0,
        average_processing_time: 0, data: status(name),
      })),
    }),
  };
  const answer = (subject: string, what: () => object, queue?: string): (() => void) => {
    const callback = (err: Error | null, msg: Msg): void => {
      if (!err) msg.respond(JSON.stringify(what()));
    };
    const sub = nc.subscribe(subject, { callback, ...(queue && { queue }) });
    return () => sub.unsubscribe();
  };
  const ends = Object.entries(verbs).flatMap(([verb, what]) => {
    const say = (): object => ({ ...who, type: `io.nats.micro.v1.${verb.toLowerCase()}_response`, ...what() });
    return ['', `.${who.name}`, `.${who.name}.${who.id}`].map((rest) => answer(`$SRV.${verb}${rest}`, say));
  });
  ends.push(...endpoints().map((name) => answer(subject(name), () => ({ ...status(name), contract: contract(name) }), QUEUE)));
  return () => ends.forEach((end) => end());
}
