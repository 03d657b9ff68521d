package embedded

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/internal/backoff"
)

const (
	// portAttempts bounds how often a start is tried on another port when somebody takes the one just chosen.
	portAttempts = 5
	// knockTimeout bounds one try to connect to a server that is starting.
	knockTimeout = 5 * time.Second
)

// launch starts a server on the whole cluster and waits until it takes connections.
func (p *Postgres) launch(ctx context.Context) error {
	for attempt := 1; ; attempt++ {
		at := p.currentAddress()
		if err := p.layout.writeSettings(ctx, p.install, p.owner, at, p.config.Settings); err != nil {
			return err
		}
		proc, err := startProcess(p.install, p.layout, p.owner, p.config.Bound)
		if err != nil {
			return err
		}
		if err = p.awaitReady(ctx, proc, at); err == nil {
			p.mu.Lock()
			p.proc = proc
			p.mu.Unlock()
			p.config.Log.Info("PostgreSQL is ready", zap.String("version", p.install.Version),
				zap.String("dir", p.layout.dir), zap.Int("pid", proc.cmd.Process.Pid),
				zap.Duration("took", time.Since(proc.started)))
			return nil
		}
		if again := p.mend(ctx, proc, at, attempt); !again {
			return err
		}
	}
}

// mend reports whether a start that went wrong is worth another one, after what stood in its way has been seen to.
func (p *Postgres) mend(ctx context.Context, proc *process, at address, attempt int) bool {
	said := proc.tail()
	switch {
	case strings.Contains(said, "pre-existing shared memory block"):
		// Backends of a server that was killed are still on their way out.
		return backoff.Sleep(ctx, 200*time.Millisecond) == nil
	case at.socketDir == "" && strings.Contains(said, "could not bind") && attempt < portAttempts:
		port, err := freePort(ctx)
		if err != nil {
			return false
		}
		p.mu.Lock()
		p.address.port = port
		p.mu.Unlock()
		return true
	}
	return false
}

// awaitReady waits for a real connection. A server that does not get there is shut down.
func (p *Postgres) awaitReady(ctx context.Context, proc *process, at address) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := knock(ctx, proc, at)
		if err == nil {
			return nil
		}
		if refused(err) {
			return errors.Join(proc.failure(err), proc.stop(ctx))
		}
		select {
		case <-proc.exited:
			return proc.failure(proc.err)
		case <-ctx.Done():
			return errors.Join(proc.failure(context.Cause(ctx)), proc.stop(ctx))
		case <-tick.C:
		}
	}
}

// knock tries one connection. What listens on a TCP port may be a stranger who never answers, so the try ends with the
// server that it is meant for.
func knock(ctx context.Context, proc *process, at address) error {
	ctx, cancel := context.WithTimeout(ctx, knockTimeout)
	defer cancel()
	done := make(chan struct{})
	defer close(done)
	go func() {
		select {
		case <-proc.exited:
			cancel()
		case <-done:
		}
	}()
	return connect(ctx, at.url("postgres"), func(*pgx.Conn) error { return nil })
}

// refused tells a server that knows us not from one that is not up yet.
func refused(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && strings.HasPrefix(pg.Code, "28")
}

func connect(ctx context.Context, url string, f func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	return errors.Join(f(conn), conn.Close(context.WithoutCancel(ctx)))
}
