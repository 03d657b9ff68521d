package endpoints

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/tranchehq/tranche/endpoints/wire"
)

// A service says that it listens, drains and is gone, and is ready between.
func TestAServiceSpeaks(t *testing.T) {
	t.Parallel()
	b := setup(t)
	core, said := observer.New(zap.InfoLevel)
	svc := b.service(func(c *Config) { c.Log = zap.New(core) })
	if svc.Ready() == nil {
		t.Error("a service without endpoints is ready")
	}
	check(t, HandleList(svc, "double", double))
	var not *NotReadyError
	if err := svc.Ready(); !errors.As(err, &not) || not.Endpoint != "double" || not.State != "" {
		t.Errorf("before it runs: %v", err)
	}
	stop := b.Run(svc)
	b.reply("double", numbers(1))
	if err := svc.Ready(); err != nil {
		t.Errorf("while it listens: %v", err)
	}
	check(t, stop())
	if err := svc.Ready(); !errors.As(err, &not) || not.State != wire.StateDraining {
		t.Errorf("after it ended: %v", err)
	}
	for _, line := range []string{"listening", "draining: no more chunks are taken, those at work may end", "gone"} {
		if n := said.FilterMessage(line).Len(); n != 1 {
			t.Errorf("%q is said %d times", line, n)
		}
	}
}

// A server that is not there is told of once, without the password.
func TestANATSThatIsNotThereIsToldOf(t *testing.T) {
	t.Parallel()
	core, said := observer.New(zap.InfoLevel)
	nc, err := nats.Connect("nats://u:canary@127.0.0.1:1", append(Options(), LogTo(zap.New(core)))...)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	eventually(t, "it is told of", func() bool {
		return said.FilterMessageSnippet("NATS cannot be reached; trying until it can: start `tranche serve`").Len() == 1
	})
	for _, line := range said.All() {
		for _, field := range line.Context {
			if strings.Contains(fmt.Sprint(field.String, field.Interface), "canary") {
				t.Errorf("the password is said: %v", line)
			}
		}
	}
}
