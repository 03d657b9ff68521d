package testenv

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/tranchehq/tranche/internal/embedded"
	"github.com/tranchehq/tranche/migrations"
)

// keptFor limits the age of a kept cluster, since its name does not cover the code that made it.
const keptFor = time.Hour

// newCluster creates a stopped cluster with the migrated databases [embedded.DefaultDatabase] and leaseTemplate, and
// the role that serves in their clones, in dir. It copies one with the same migrations and PostgreSQL from the user's
// cache, if any, which saves a second or more.
func newCluster(ctx context.Context, dir string) error {
	cache, err := os.UserCacheDir()
	if err != nil {
		return makeCluster(ctx, dir)
	}
	cache = filepath.Join(cache, "tranche-test")
	name, err := clusterName(ctx)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(cache, 0o700); err != nil {
		return err
	}
	lock, err := os.OpenFile(filepath.Join(cache, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return err
	}
	if err := sweepKept(cache); err != nil {
		return err
	}
	kept := filepath.Join(cache, name)
	if _, err := os.Stat(kept); err == nil {
		return copyCluster(ctx, kept, dir)
	}
	if err := makeCluster(ctx, dir); err != nil {
		return err
	}
	draft := kept + ".new"
	return errors.Join(os.MkdirAll(draft, 0o700), copyCluster(ctx, dir, draft), os.Rename(draft, kept))
}

// sweepKept removes expired clusters, and drafts that a killed binary left. The caller holds the lock.
func sweepKept(cache string) error {
	kept, err := os.ReadDir(cache)
	for _, entry := range kept {
		info, gone := entry.Info()
		if gone == nil && entry.IsDir() &&
			(filepath.Ext(entry.Name()) == ".new" || time.Since(info.ModTime()) > keptFor) {
			err = errors.Join(err, os.RemoveAll(filepath.Join(cache, entry.Name())))
		}
	}
	return err
}

// clusterName depends on the migrations and the installation of PostgreSQL.
func clusterName(ctx context.Context) (string, error) {
	installs, err := embedded.FindInstalls(ctx)
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	_, _ = fmt.Fprintln(sum, installs[0].Dir, installs[0].Version, servingRole, idle, beginLeases)
	err = fs.WalkDir(migrations.Files, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := migrations.Files.ReadFile(path)
		_, _ = fmt.Fprintln(sum, path, len(text))
		sum.Write(text)
		return err
	})
	return fmt.Sprintf("%x", sum.Sum(nil)[:8]), err
}

func makeCluster(ctx context.Context, dir string) error {
	server, err := embedded.StartPostgres(ctx, embedded.PostgresConfig{
		DataDir: dir, Settings: reckless, NoRestart: true, Bound: true,
	})
	if err != nil {
		return err
	}
	if _, err = migrations.Up(ctx, server.URL(), nil); err == nil {
		err = grantServing(ctx, server.URL())
	}
	for _, step := range [][2]string{
		{"postgres", idle},
		{"postgres", "CREATE DATABASE " + leaseTemplate + " TEMPLATE " + embedded.DefaultDatabase},
		{leaseTemplate, beginLeases},
	} {
		if err == nil {
			err = execute(ctx, server.URLFor(step[0]), step[1])
		}
	}
	return errors.Join(err, server.Stop(ctx))
}

// copyCluster does not change the directory's age, which [sweep] uses.
func copyCluster(ctx context.Context, from, to string) error {
	out, err := exec.CommandContext(ctx, "cp", "-a", filepath.Join(from, "cluster"), filepath.Join(from, "password"), to).
		CombinedOutput()
	if err != nil {
		return fmt.Errorf("copy the cluster in %s: %w: %s", from, err, out)
	}
	return nil
}
