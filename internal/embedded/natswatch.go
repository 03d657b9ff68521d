package embedded

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/internal/backoff"
)

// storePoll is the interval for checking the store. A loss must be seen twice, because the server itself moves
// directories when it purges a stream.
const storePoll = 250 * time.Millisecond

const (
	// disabled is the state of JetStream when the server cannot write, as on a full disk.
	disabled = "JetStream has been disabled"
	// disabledPause is the wait before the next restart for this reason: the disk is probably still full.
	disabledPause = 5 * time.Second
)

// storeView is the state of the store: the server's essential directories and the streams. After their deletion the
// server continues, writes into unlinked files, and fails every attempt to create a stream.
type storeView struct {
	root, jetstream os.FileInfo
	streams         map[string]bool // stream directories seen so far
}

func jetstreamDir(store string) string { return filepath.Join(store, server.JetStreamStoreDir) }

func streamDir(store, stream string) string {
	return filepath.Join(jetstreamDir(store), server.DEFAULT_GLOBAL_ACCOUNT, "streams", stream, "msgs")
}

func lookAtStore(store string) (storeView, error) {
	root, err := os.Stat(store)
	if err != nil {
		return storeView{}, err
	}
	jetstream, err := os.Stat(jetstreamDir(store))
	return storeView{root: root, jetstream: jetstream, streams: make(map[string]bool)}, err
}

// watch restarts a server that lost its store or disabled JetStream, until ctx ends.
func (n *NATS) watch(ctx context.Context) {
	defer close(n.watched)
	var before string
	var revived time.Time
	for backoff.Sleep(ctx, storePoll) == nil {
		now := n.damage()
		if now == disabled && time.Since(revived) < disabledPause {
			continue
		}
		if now != "" && now == before {
			n.revive(ctx, now)
			revived, now = time.Now(), ""
		}
		before = now
	}
}

func (n *NATS) damage() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case !n.server.JetStreamEnabled():
		return disabled
	case !sameDir(n.store.root, n.config.StoreDir), !sameDir(n.store.jetstream, jetstreamDir(n.config.StoreDir)):
		return "the JetStream store has been deleted"
	}
	if name := n.lostStream(); name != "" {
		return fmt.Sprintf("the files of stream %s have been deleted", name)
	}
	return ""
}

func sameDir(known os.FileInfo, path string) bool {
	now, err := os.Stat(path)
	// Other errors, like too many open files, do not prove a loss.
	return (err == nil && os.SameFile(known, now)) || (err != nil && !os.IsNotExist(err))
}

func (n *NATS) lostStream() string {
	entries, _ := os.ReadDir(filepath.Dir(filepath.Dir(streamDir(n.config.StoreDir, "x"))))
	for _, e := range entries {
		n.store.streams[e.Name()] = true
	}
	for name := range n.store.streams {
		if _, err := os.Stat(streamDir(n.config.StoreDir, name)); !os.IsNotExist(err) {
			continue
		}
		if n.hasStream(name) {
			return name
		}
		delete(n.store.streams, name)
	}
	return ""
}

func (n *NATS) hasStream(name string) bool {
	info, err := n.server.Jsz(&server.JSzOptions{Account: server.DEFAULT_GLOBAL_ACCOUNT, Accounts: true, Streams: true})
	if err != nil {
		return false
	}
	for _, account := range info.AccountDetails {
		for _, stream := range account.Streams {
			if stream.Name == name {
				return true
			}
		}
	}
	return false
}

func (n *NATS) revive(ctx context.Context, why string) {
	n.config.Log.Warn("restarting the NATS server", zap.String("because", why), zap.String("store", n.config.StoreDir))
	pauses := backoff.Exponential{First: firstPause, Longest: longPause}
	for {
		err := n.renew(ctx)
		if err == nil {
			return
		}
		pause := pauses.Next()
		n.config.Log.Error("the NATS server did not restart", zap.Error(err), zap.Duration("next_try_in", pause))
		if backoff.Sleep(ctx, pause) != nil {
			return
		}
	}
}

// renew replaces the server. The rest of a partly deleted store is deleted too, because half of it is useless.
func (n *NATS) renew(ctx context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	deleted := !sameDir(n.store.root, n.config.StoreDir) || !sameDir(n.store.jetstream, jetstreamDir(n.config.StoreDir))
	n.halt()
	if deleted {
		if err := os.RemoveAll(jetstreamDir(n.config.StoreDir)); err != nil {
			return fmt.Errorf("clear the NATS store: %w", err)
		}
	}
	return n.start(ctx)
}

const (
	// Between restarts of a server that ended on its own, indefinitely, each logged.
	firstPause = time.Second
	longPause  = 30 * time.Second
)

// watch restarts a server that ended on its own, until ctx ends.
func (p *Postgres) watch(ctx context.Context) {
	defer close(p.watched)
	pauses := backoff.Exponential{First: firstPause, Longest: longPause}
	for {
		proc := p.proc // only this goroutine replaces it
		select {
		case <-ctx.Done():
			return
		case <-proc.exited:
		}
		p.config.Log.Error("PostgreSQL ended unexpectedly", zap.Error(proc.failure(proc.err)))
		if p.config.NoRestart {
			return
		}
		if time.Since(proc.started) > longPause {
			pauses.Reset()
		}
		for pause := pauses.Next(); ; {
			if backoff.Sleep(ctx, pause) != nil {
				return
			}
			err := p.relaunch(ctx)
			if err == nil {
				break
			}
			if ctx.Err() != nil {
				return
			}
			pause = pauses.Next()
			p.config.Log.Error("PostgreSQL did not restart", zap.Error(err), zap.Duration("next_try_in", pause))
		}
	}
}

func (p *Postgres) relaunch(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return p.launch(ctx)
}
