package embedded

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
)

const (
	// maxLog is the size at which the log is put aside at the next start.
	maxLog = 16 << 20
	// lastResort is how long a server may take to obey an immediate shutdown before it is killed.
	lastResort = 5 * time.Second
)

// process is one life of a PostgreSQL server, our child.
type process struct {
	cmd     *exec.Cmd
	log     string
	offset  int64         // where its own words begin in the log
	exited  chan struct{} // closed when it has ended, with err set
	err     error
	started time.Time
}

// startProcess starts the server and returns before it is ready. With bound set, it also dies with this process.
func startProcess(in Install, l layout, a account, bound bool) (*process, error) {
	log, offset, err := l.openLog()
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()                           // the child has its own
	cmd := exec.Command(in.program("postgres"), "-D", l.cluster) //nolint:noctx // it outlives the start
	cmd.Dir, cmd.Env, cmd.SysProcAttr = l.dir, serverEnv(), a.attributes()
	cmd.Stdout, cmd.Stderr = log, log
	if bound {
		DieWithParent(cmd.SysProcAttr, syscall.SIGQUIT) // an immediate shutdown
	}
	p := &process{cmd: cmd, log: l.log, offset: offset, exited: make(chan struct{}), started: time.Now()}
	if err := StartChild(cmd, func(err error) { p.err = err; close(p.exited) }); err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	return p, nil
}

func (l layout) openLog() (*os.File, int64, error) {
	if info, err := os.Stat(l.log); err == nil && info.Size() > maxLog {
		if err := os.Rename(l.log, l.log+".1"); err != nil {
			return nil, 0, fmt.Errorf("put the old log aside: %w", err)
		}
	}
	f, err := os.OpenFile(l.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, 0, fmt.Errorf("open the server's log: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, info.Size(), nil
}

func (p *process) tail() string { return tail(p.log, p.offset) }

func (p *process) failure(err error) error {
	return &ServerError{Program: "postgres", Log: p.log, Tail: p.tail(), Err: err}
}

// stop shuts the server down: clients are cut off and everything is written (fast). When ctx ends first it goes
// without a checkpoint (immediate); that loses nothing, but the next start has to recover, and stop says so.
func (p *process) stop(ctx context.Context) error {
	p.signal(syscall.SIGINT)
	select {
	case <-p.exited:
		return nil
	case <-ctx.Done():
	}
	p.signal(syscall.SIGQUIT)
	timer := time.NewTimer(lastResort)
	defer timer.Stop()
	select {
	case <-p.exited:
	case <-timer.C:
		p.signal(syscall.SIGKILL)
		<-p.exited
	}
	return fmt.Errorf("stop PostgreSQL: %w; it was shut down without a checkpoint and will recover at its next start",
		context.Cause(ctx))
}

// signal may find that the process has gone, which is as good.
func (p *process) signal(sig syscall.Signal) { _ = p.cmd.Process.Signal(sig) }
