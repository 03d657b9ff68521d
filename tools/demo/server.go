package demo

import (
	"context"

	"github.com/tranchehq/tranche/tools/demokit"
)

// server is a tranche serve of the demo's own.
type server struct {
	*demokit.Child
	API      string `json:"api"`
	NATS     string `json:"nats"`
	Database string `json:"-"`
}

// startServer starts tranche serve on free ports and returns when it is ready. It prints where it is.
func startServer(ctx context.Context, sh *demokit.Shell, database, data, connections, log string) (*server, error) {
	cmd := sh.Command(context.WithoutCancel(ctx), "--json", "serve", "--connections", connections,
		"--listen", "127.0.0.1:0", "--nats-listen", "127.0.0.1:0", "--data-dir", data)
	// It counts what is done, and nobody is to do again what this one is just slow with.
	cmd.Env = demokit.Environment("TRANCHE_DATABASE="+database, "TRANCHE_SESSION_TTL=1m")
	s := &server{Database: database}
	c, err := demokit.StartAnnounced(ctx, "tranche serve", log, cmd, s)
	if c == nil {
		return nil, err
	}
	s.Child = c
	return s, err
}
