package embedded

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// startChild runs the cluster from another process and returns that, with the server's process id.
func startChild(t *testing.T, dir string) (*exec.Cmd, int) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"="+dir)
	out := must(cmd.StdoutPipe())(t)
	noError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	pid, found := strings.CutPrefix(strings.TrimSpace(line), "ready ")
	if err != nil || !found {
		t.Fatalf("the child said %q (%v)", line, err)
	}
	server := must(strconv.Atoi(pid))(t)
	return cmd, server
}

func TestPostgresSurvivesKillOfItsProcess(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	cmd, orphan := startChild(t, dir)
	l := newLayout(dir)
	at, err := l.chooseAddress(t.Context())
	noError(t, err)
	run(t, at.url("tranche"), `CREATE TABLE t AS SELECT 'kept' AS v`)

	_, err = tryStart(t, PostgresConfig{DataDir: dir})
	same(t, as[*LockedError](t, err).PID, cmd.Process.Pid, "the process that has the lock while the child lives")
	noError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	if !servesCluster(t.Context(), orphan, l.cluster) {
		t.Fatal("the kill took the server too: nothing was tested")
	}

	pg := start(t, PostgresConfig{DataDir: dir})
	if servesCluster(t.Context(), orphan, l.cluster) {
		t.Error("the server left running still runs")
	}
	same(t, query(t, pg.URL(), `SELECT v FROM t`), "kept", "the row after the kill")
}

func TestPostgresIsStoppedByItsProcess(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	cmd, server := startChild(t, dir)
	noError(t, cmd.Process.Signal(syscall.SIGTERM))
	noError(t, cmd.Wait())
	if servesCluster(t.Context(), server, newLayout(dir).cluster) {
		t.Fatal("the server outlived a clean stop")
	}
}

func TestPostgresClearsAStalePidFile(t *testing.T) {
	t.Parallel()
	// Of a process that lives and is no server of ours; of none; of a broken file.
	sleeper := exec.Command("sleep", "3600")
	if os.Geteuid() == 0 { // PostgreSQL minds the processes of its own user only
		if a, err := serverAccount(""); err == nil {
			sleeper.SysProcAttr = a.attributes()
		}
	}
	noError(t, sleeper.Start())
	defer func() { _ = sleeper.Process.Kill(); _ = sleeper.Wait() }()
	dir := dataDir(t)
	stop(t, start(t, PostgresConfig{DataDir: dir}))
	l := newLayout(dir)
	file := filepath.Join(l.cluster, "postmaster.pid")
	for _, text := range []string{
		fmt.Sprintf("%d\n%s\n1700000000\n5432\n%s\n\n", sleeper.Process.Pid, l.cluster, l.run),
		fmt.Sprintf("%d\n%s\n1700000000\n5432\n%s\n\n", 1<<22-1, l.cluster, l.run),
		"",
	} {
		noError(t, os.WriteFile(file, []byte(text), 0o600))
		owner, err := serverAccount(l.cluster)
		if err != nil || owner.give(file) != nil {
			t.Fatal("cannot give the pid file away", err)
		}
		pg := start(t, PostgresConfig{DataDir: dir})
		query(t, pg.URL(), `SELECT 'up'`)
		stop(t, pg)
	}
	same(t, syscall.Kill(sleeper.Process.Pid, 0), nil, "a signal to the bystander")
}

// halfMade returns a data directory in which initdb was interrupted. The cluster may be whole before its process is
// killed: then another one is begun.
func halfMade(t *testing.T) layout {
	t.Helper()
	for range 5 {
		l := newLayout(dataDir(t))
		breakOff(t, l)
		if _, err := os.Stat(l.cluster); err != nil {
			return l
		}
		start(t, PostgresConfig{DataDir: l.dir}) // clears what was left running
	}
	t.Fatal("the cluster was whole each time: nothing was tested")
	return layout{}
}

// breakOff kills a process while it makes a cluster.
func breakOff(t *testing.T, l layout) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"="+l.dir)
	noError(t, cmd.Start())
	eventually(t, limit, "initdb at work", func() bool { // or done already
		found, err := filepath.Glob(filepath.Join(l.dir, "cluster*", "PG_VERSION"))
		return err == nil && len(found) == 1
	})
	noError(t, cmd.Process.Kill())
	_ = cmd.Wait()
}

func TestPostgresRedoesAHalfMadeCluster(t *testing.T) {
	t.Parallel()
	l := halfMade(t)
	pg := start(t, PostgresConfig{DataDir: l.dir})
	query(t, pg.URL(), `SELECT 'up'`)
	// The initdb of the killed process continues for a moment; a later start clears what it wrote.
	stop(t, pg)
	eventually(t, limit, "no draft left", func() bool {
		l.clearDrafts()
		left, err := filepath.Glob(l.drafts)
		return err == nil && len(left) == 0
	})
}
