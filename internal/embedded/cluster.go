// Package embedded holds what tranche runs by itself when it is given no URLs: a private PostgreSQL cluster, made from
// the binaries installed on the machine, and a NATS server with JetStream in this process.
//
// [StartPostgres] makes the cluster on its first call and starts it on every later one. What it promises:
//
//   - One process at a time owns a data directory; a second one gets a [LockedError].
//   - A kill -9 of this process at any moment, in the middle of initdb too, is repaired by the next start. A server
//     left over from it is shut down cleanly first.
//   - Data of another major version is never touched; see [VersionError].
//   - Commits are durable, unless the caller's settings say otherwise.
//   - A server that dies is started again until Stop is called.
//   - It works as root, by running the server as another user.
//
// [StartNATS] starts the NATS server and keeps it usable: a JetStream store that is deleted under it is noticed, and
// the server comes back with an empty one at the same address. JetStream may lose what it has acknowledged; nothing in
// Tranche relies on it.
//
// It is not the package's job to set up, tune or watch servers that someone else runs. Its types are safe for
// concurrent use. On Windows only NATS is started; [StartPostgres] is
// [ErrNotOnWindows] there.
package embedded

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"go.uber.org/zap"
)

// superuser is the role that owns the private cluster.
const superuser = "tranche"

// access lets in whoever can reach the socket, which stands in a private directory, and asks for the password on TCP.
const access = `# Written by tranche when it made this cluster.
local all         all               trust
local replication all               trust
host  all         all  127.0.0.1/32 scram-sha-256
`

// openCluster returns the installation to run the cluster with, and makes the cluster first where there is none.
func openCluster(ctx context.Context, l layout, a account, durable bool, log *zap.Logger) (Install, error) {
	installs, err := FindInstalls(ctx)
	if err != nil {
		return Install{}, err
	}
	text, err := os.ReadFile(filepath.Join(l.cluster, "PG_VERSION"))
	if os.IsNotExist(err) {
		return makeCluster(ctx, installs, l, a, durable, log)
	}
	if err != nil {
		return Install{}, fmt.Errorf("read the version of cluster %s: %w", l.cluster, err)
	}
	major, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return Install{}, fmt.Errorf("read the version of cluster %s: %w", l.cluster, err)
	}
	return installFor(major, l.cluster, installs)
}

func installFor(major int, cluster string, installs []Install) (Install, error) {
	for _, in := range installs {
		if in.Major == major {
			return in, nil
		}
	}
	return Install{}, &VersionError{Dir: cluster, Data: major, Installed: installs}
}

// makeCluster makes a cluster with the newest installation whose initdb works.
func makeCluster(
	ctx context.Context, installs []Install, l layout, a account, durable bool, log *zap.Logger,
) (Install, error) {
	var failed error
	for _, in := range installs {
		log.Info("making a private PostgreSQL cluster", zap.String("dir", l.dir), zap.String("version", in.Version),
			zap.String("user", a.name))
		err := l.makeWith(ctx, in, a, durable)
		if err == nil {
			return in, nil
		}
		failed = errors.Join(failed, fmt.Errorf("make cluster with %s: %w", in.Dir, err))
		if ctx.Err() != nil {
			break
		}
	}
	return Install{}, failed
}

// makeWith works in a draft directory and renames that as its last deed, so a cluster is either whole or not there.
func (l layout) makeWith(ctx context.Context, in Install, a account, durable bool) error {
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
	if err == nil {
		err = os.Rename(draft, l.cluster)
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(draft))
	}
	return syncDir(l.dir)
}

// clearDrafts removes what killed processes left. An initdb that outlived its process may still be writing there; what
// it puts back goes at the next start.
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
	if !durable {
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

// configure replaces the access rules and makes the server read our settings, then the operator's own.
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

// writePassword makes the superuser's password, once.
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

// serverEnv is our environment without what would lead PostgreSQL's programs astray, and with English messages.
func serverEnv() []string {
	var env []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "PG") && !strings.HasPrefix(kv, "LC_") && !strings.HasPrefix(kv, "LANG") {
			env = append(env, kv)
		}
	}
	return append(env, "LC_ALL=C")
}
