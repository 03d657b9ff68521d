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

// storePoll is how often the store is looked at. A loss must be seen twice, for the server itself moves directories
// about when it purges a stream.
const storePoll = 250 * time.Millisecond

const (
	// disabled is what the server does to JetStream when it cannot write, as on a full disk.
	disabled = "JetStream has been disabled"
	// disabledPause is how long it stays so when it happens again: the disk is not likely to have been cleared yet.
	disabledPause = 5 * time.Second
)

// storeView is what the store looked like: the directories the server cannot live without, and the streams in it. When
// they are deleted under it the server goes on, writes into files that have no name any more, and answers every attempt
// to make a stream with an error.
type storeView struct {
	root, jetstream os.FileInfo
	streams         map[string]bool // directories of streams seen so far
}

func jetstreamDir(store string) string { return filepath.Join(store, server.JetStreamStoreDir) }

// streamDir holds a stream's messages.
func streamDir(store, stream string) string {
	return filepath.Join(jetstreamDir(store), server.DEFAULT_GLOBAL_ACCOUNT, "streams", stream, "msgs")
}

func lookAtStore(store string) (storeView, error) {
	root, err := os.Stat(store)
	if err != nil {
		return storeView{}, err
	}
	jetstream, err := os.Stat(jetstreamDir(store))
	if err != nil {
		return storeView{}, err
	}
	return storeView{root: root, jetstream: jetstream, streams: make(map[string]bool)}, nil
}

// watch brings the server back when it lost its store, or had to give up JetStream, until ctx ends.
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

// damage says what is wrong with the running server, or nothing.
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
	// Anything but its absence, like too many open files, is no proof of a loss.
	return (err == nil && os.SameFile(known, now)) || (err != nil && !os.IsNotExist(err))
}

// lostStream returns a stream that the server believes to have and whose directory was there and is gone.
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

// revive starts a new server at the same address, however often it takes.
func (n *NATS) revive(ctx context.Context, why string) {
	n.config.Log.Warn("restarting the NATS server", zap.String("because", why), zap.String("store", n.config.StoreDir))
	pauses := backoff.Exponential{First: firstPause, Longest: longPause}
	for {
		err := n.renew(ctx)
		if err == nil {
			return
		}
		pause := pauses.Next()
		n.config.Log.Error("the NATS server did not start again", zap.Error(err), zap.Duration("next_try_in", pause))
		if backoff.Sleep(ctx, pause) != nil {
			return
		}
	}
}

// renew exchanges the server. What is left of a store that was deleted goes too: half of it is worth nothing.
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
	// Between two starts of a server that has ended by itself, indefinitely, each logged.
	firstPause = time.Second
	longPause  = 30 * time.Second
)

// watch starts the server again when it has ended by itself, until ctx ends.
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
			p.config.Log.Error("PostgreSQL did not start again", zap.Error(err), zap.Duration("next_try_in", pause))
		}
	}
}

func (p *Postgres) relaunch(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, p.config.StartTimeout)
	defer cancel()
	return p.launch(ctx)
}
