package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// natsArgument, with a directory, makes this program a NATS server, so that what it takes is told apart from the node.
const natsArgument = "-serve-nats"

func isNATS(args []string) bool { return len(args) == 3 && args[1] == natsArgument }

// natsWelcome is what it prints once it is ready.
type natsWelcome struct {
	URL     string `json:"url"`
	Monitor string `json:"monitor"`
}

func runNATS(dir string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	ns, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, HTTPHost: "127.0.0.1",
		HTTPPort: server.RANDOM_PORT, JetStream: true, StoreDir: dir, NoSigs: true, NoLog: true, MaxPayload: 8 << 20})
	if err != nil {
		return fmt.Errorf("make a NATS server: %w", err)
	}
	ns.Start()
	defer ns.WaitForShutdown()
	defer ns.Shutdown()
	if !ns.ReadyForConnections(readyTimeout) || !ns.JetStreamEnabled() {
		return errors.New("the NATS server is not ready, or has no JetStream")
	}
	err = json.NewEncoder(os.Stdout).Encode(natsWelcome{ns.ClientURL(), "http://" + ns.MonitorAddr().String()})
	<-ctx.Done()
	return err
}

// scaleBed is a bed whose NATS is a process of its own.
type scaleBed struct {
	*bed
	monitor string
}

// openScaleBed starts everything, for a database that is so far away: a round trip takes so much longer.
func openScaleBed(ctx context.Context, cfg config, pg *cluster, name string, away time.Duration,
) (s *scaleBed, err error) {
	b := &bed{pg: pg, program: cfg.binary, finished: make(chan finish, 16)}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.close())
		}
	}()
	if b.name, b.database, err = pg.freshDatabase(ctx, name); err != nil {
		return nil, err
	}
	if b.dir, err = os.MkdirTemp(pg.dir, "node-"); err != nil {
		return nil, fmt.Errorf("make a directory for the node: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	var w natsWelcome
	if b.nats, err = startReady(ctx, "the NATS server", &w, self, natsArgument, b.dir+"/streams"); err != nil {
		return nil, err
	}
	b.natsURL = w.URL
	direct := b.database
	if away > 0 {
		far, err := openFar(b.database, away/2)
		if err != nil {
			return nil, err
		}
		b.far, b.database = far, far.url
	}
	if err := b.startNode(ctx, cfg.binary); err != nil {
		return nil, err
	}
	b.database = direct // for those who look at it
	if err := b.subscribe(); err != nil {
		return nil, err
	}
	if err := b.startService(); err != nil {
		return nil, err
	}
	if _, err := b.complete(ctx, work{endpoint: echoEndpoint}, items{n: bedWarmItems}); err != nil {
		return nil, fmt.Errorf("warm up the node: %w", err)
	}
	return &scaleBed{b, w.Monitor}, pg.checkpoint(ctx)
}

// wireBytes are what has come to the NATS server and gone from it.
func (b *scaleBed) wireBytes(ctx context.Context) (float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, b.monitor+"/varz", http.NoBody)
	if err != nil {
		return 0, fmt.Errorf("ask the NATS server: %w", err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, fmt.Errorf("ask the NATS server: %w", err)
	}
	defer resp.Body.Close()
	var v struct {
		In  float64 `json:"in_bytes"`
		Out float64 `json:"out_bytes"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&v); err != nil {
		return 0, fmt.Errorf("ask the NATS server: %w", err)
	}
	return v.In + v.Out, nil
}
