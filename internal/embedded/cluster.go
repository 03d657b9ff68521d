// Package embedded runs what tranche needs when it is given no URLs: a private PostgreSQL cluster, with the machine's
// binaries, and a NATS server with JetStream in this process.
//
// [StartPostgres] creates the cluster on its first call and starts it later. It guarantees:
//
//   - One process at a time owns a data directory; a second one gets a [LockedError].
//   - The next start repairs a kill -9 of this process at any moment, even during initdb. It first shuts a leftover
//     server down cleanly.
//   - Data of another major version is never touched; see [VersionError].
//   - Commits are durable, unless the caller's settings say otherwise.
//   - A server that dies is restarted until Stop is called.
//   - It works as root, by running the server as another user.
//
// [StartNATS] starts the NATS server. If its JetStream store is deleted while it runs, it restarts with an empty one
// at the same address. JetStream may lose acknowledged messages; Tranche does not rely on it.
//
// It does not set up, tune or watch other servers. Its types are safe for concurrent use. On Windows only NATS works;
// [StartPostgres] returns [ErrNotOnWindows].
package embedded

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"go.uber.org/zap"
)

// superuser is the role that owns the private cluster.
const superuser = "tranche"

// access trusts clients of the socket, which is in a private directory, and requires the password on TCP.
const access = `# Written by tranche when it made this cluster.
local all         all               trust
local replication all               trust
host  all         all  127.0.0.1/32 scram-sha-256
`

func (p *Postgres) openCluster(ctx context.Context) (Install, error) {
	installs, err := FindInstalls(ctx)
	if err != nil {
		return Install{}, err
	}
	cluster := p.layout.cluster
	text, err := os.ReadFile(filepath.Join(cluster, "PG_VERSION"))
	if os.IsNotExist(err) {
		return p.makeCluster(ctx, installs)
	}
	if err != nil {
		return Install{}, fmt.Errorf("read the version of cluster %s: %w", cluster, err)
	}
	major, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return Install{}, fmt.Errorf("read the version of cluster %s: %w", cluster, err)
	}
	return installFor(major, cluster, installs)
}

func installFor(major int, cluster string, installs []Install) (Install, error) {
	for _, in := range installs {
		if in.Major == major {
			return in, nil
		}
	}
	return Install{}, &VersionError{Dir: cluster, Data: major, Installed: installs}
}

func (p *Postgres) makeCluster(ctx context.Context, installs []Install) (Install, error) {
	var failed error
	for _, in := range installs {
		p.config.Log.Info("making a private PostgreSQL cluster", zap.String("dir", p.layout.dir),
			zap.String("version", in.Version), zap.String("user", p.owner.name))
		err := p.makeWith(ctx, in)
		if err == nil {
			return in, nil
		}
		failed = errors.Join(failed, fmt.Errorf("make cluster with %s: %w", in.Dir, err))
		if ctx.Err() != nil || errors.Is(err, errPrepare) {
			break
		}
	}
	return Install{}, failed
}

// makeWith works in a draft directory and finally renames it, so a cluster is either complete or absent.
func (p *Postgres) makeWith(ctx context.Context, in Install) error {
	l, a, durable := p.layout, p.owner, p.config.Settings["fsync"] != "off"
	if err := l.writePassword(a); err != nil {
		return fmt.Errorf("write the cluster's password: %w", err)
	}
	draft, err := os.MkdirTemp(l.dir, filepath.Base(l.drafts))
	if err != nil {
		return err
	}
	err = a.give(draft)
	if err == nil {
		err = l.initdb(ctx, in, a, draft, durable)
	}
	if err == nil {
		err = configure(draft, a)
	}
	if err == nil && p.config.Prepare != nil {
		err = p.prepare(ctx, in, draft)
	}
	if err == nil && durable {
		err = syncTree(draft)
	}
	if err == nil {
		err = os.Rename(draft, l.cluster)
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(draft))
	}
	return syncDir(l.dir)
}

// errPrepare is wrapped by an error of config.Prepare, which another version of PostgreSQL would not fix.
var errPrepare = errors.New("prepare the database")

// prepare runs config.Prepare on a server of the draft. Where the draft is synced entirely once the server has
// stopped, the server does not sync.
func (p *Postgres) prepare(ctx context.Context, in Install, draft string) error {
	d := &Postgres{config: p.config, layout: p.layout, owner: p.owner, install: in}
	d.layout.cluster = draft
	d.config.Log = zap.NewNop()
	d.config.Bound = true // without this process, the draft is removed
	d.config.Settings = map[string]string{"fsync": "on"}
	if syncsAll {
		d.config.Settings["fsync"] = "off"
	}
	maps.Copy(d.config.Settings, p.config.Settings)
	if err := d.serve(ctx); err != nil {
		return err
	}
	err := p.config.Prepare(ctx, d.URL())
	if err != nil {
		err = fmt.Errorf("%w: %w", errPrepare, err)
	}
	return errors.Join(err, d.proc.stop(ctx), os.Remove(filepath.Join(draft, settingsFile)))
}

// clearDrafts removes drafts of killed processes. An initdb that outlived its process may still write there; the next
// start removes that.
func (l layout) clearDrafts() {
	drafts, _ := filepath.Glob(l.drafts)
	for _, draft := range drafts {
		_ = os.RemoveAll(draft)
	}
}

func (l layout) initdb(ctx context.Context, in Install, a account, draft string, durable bool) error {
	args := []string{
		"--pgdata=" + draft, "--username=" + superuser, "--pwfile=" + l.password,
		"--encoding=UTF8", "--locale=C", "--auth-local=trust", "--auth-host=scram-sha-256",
	}
	if !durable || syncsAll {
		args = append(args, "--no-sync")
	}
	cmd := exec.CommandContext(ctx, in.program("initdb"), args...)
	cmd.Dir, cmd.Env, cmd.SysProcAttr = l.dir, serverEnv(), a.attributes()
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Run(); err != nil {
		return &ServerError{Program: "initdb", Tail: strings.TrimSpace(said.String()), Err: err}
	}
	return nil
}

// configure replaces the access rules and includes our settings, then the operator's.
func configure(draft string, a account) error {
	hba := filepath.Join(draft, "pg_hba.conf")
	if err := os.WriteFile(hba, []byte(access), 0o600); err != nil {
		return err
	}
	conf, err := os.OpenFile(filepath.Join(draft, "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(conf, "\ninclude_if_exists '%s' # written at every start\n"+
		"include_if_exists '%s' # yours\n", settingsFile, operatorFile)
	return errors.Join(err, conf.Close(), a.give(hba))
}

func (l layout) writePassword(a account) error {
	if _, err := os.Stat(l.password); err == nil {
		return a.give(l.password)
	}
	secret := make([]byte, 24)
	rand.Read(secret) // never returns an error
	if err := os.WriteFile(l.password, []byte(hex.EncodeToString(secret)+"\n"), 0o600); err != nil {
		return err
	}
	return a.give(l.password)
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func serverEnv() []string {
	var env []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "PG") && !strings.HasPrefix(kv, "LC_") && !strings.HasPrefix(kv, "LANG") {
			env = append(env, kv)
		}
	}
	return append(env, "LC_ALL=C")
}
