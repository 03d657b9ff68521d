package embedded

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"go.uber.org/zap"
)

// clearOrphan shuts down a server left on the cluster by a killed process. The caller holds the directory's lock, so
// no other process uses it. An adopted server would lack the settings of this start and could not be watched.
func clearOrphan(ctx context.Context, cluster string, log *zap.Logger) error {
	pidFile := filepath.Join(cluster, "postmaster.pid")
	pid, err := postmasterPID(pidFile)
	if err != nil || pid == 0 {
		return err
	}
	if !servesCluster(ctx, pid, cluster) {
		// Another process may have the PID now, and PostgreSQL would take it for a server. If the PID is free the file
		// stays: with it PostgreSQL finds shared memory still used by orphaned backends.
		if kill(pid, 0) == nil {
			log.Info("removing a stale postmaster.pid", zap.String("file", pidFile), zap.Int("pid", pid))
			return os.Remove(pidFile)
		}
		return nil
	}
	log.Warn("stopping a PostgreSQL server that was left running", zap.Int("pid", pid), zap.String("dir", cluster))
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGQUIT} {
		if err := kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("stop the PostgreSQL server left running as process %d: %w", pid, err)
		}
		if gone, err := awaitGone(ctx, pid, cluster); gone || err != nil {
			return err
		}
	}
	return fmt.Errorf("the PostgreSQL server left running on %s as process %d does not stop: end it by hand", cluster, pid)
}

// orphanGrace is how long a leftover server may take for each mode of shutdown.
const orphanGrace = 60 * time.Second

func awaitGone(ctx context.Context, pid int, cluster string) (bool, error) {
	limit := time.NewTimer(orphanGrace)
	defer limit.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for servesCluster(ctx, pid, cluster) {
		select {
		case <-tick.C:
		case <-limit.C:
			return false, nil
		case <-ctx.Done():
			return false, fmt.Errorf("wait for the PostgreSQL server left running as process %d: %w", pid, context.Cause(ctx))
		}
	}
	return true, nil
}

func postmasterPID(path string) (int, error) {
	text, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	line, _, _ := bufio.NewReader(bytes.NewReader(text)).ReadLine()
	pid, err := strconv.Atoi(strings.TrimSpace(string(line)))
	if err != nil {
		// Half written when the machine went down. PostgreSQL refuses such a file too.
		return 0, os.Remove(path)
	}
	return pid, nil
}

func servesCluster(ctx context.Context, pid int, cluster string) bool {
	args := commandLine(ctx, pid)
	if len(args) == 0 || !strings.HasPrefix(filepath.Base(args[0]), "postgres") {
		return false
	}
	if runtime.GOOS != "linux" {
		return slices.Contains(args, cluster)
	}
	// A server's working directory is its cluster.
	cwd, err := os.Stat(filepath.Join("/proc", strconv.Itoa(pid), "cwd"))
	if err != nil {
		return false
	}
	own, err := os.Stat(cluster)
	return err == nil && os.SameFile(cwd, own)
}

// commandLine returns nil for an ended process, also a zombie.
func commandLine(ctx context.Context, pid int) []string {
	if runtime.GOOS == "linux" {
		text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
		if err != nil || len(text) == 0 {
			return nil
		}
		return strings.Split(strings.TrimRight(string(text), "\x00"), "\x00")
	}
	out, err := exec.CommandContext(ctx, "ps", "-o", "command=", "-p", strconv.Itoa(pid)).Output()
	if err != nil {
		return nil
	}
	return strings.Fields(string(out))
}
