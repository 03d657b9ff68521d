package endpointstest_test

import (
	"context"
	"testing"
	"time"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/endpointstest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// patience is that of tests which do not expect a timeout: what a crash leaves behind may come after an AckWait only.
const patience = time.Minute

type account struct {
	Balance int `json:"balance"`
}

type statement struct {
	Closing int    `json:"closing"`
	Year    string `json:"year"`
}

func closeBooks(_ context.Context, chunk *endpoints.Chunk[account, statement]) error {
	for _, item := range chunk.Items() {
		switch {
		case item.In.Balance < 0:
			item.Fail("overdrawn", "the balance is %d", item.In.Balance)
		case item.In.Balance > 0:
			item.Reply(statement{Closing: item.In.Balance, Year: chunk.Param("year")})
		}
	}
	return nil
}

func TestKill(t *testing.T) {
	t.Parallel()
	kit := endpointstest.New(t, endpointstest.Timeout(patience))
	entered, release := make(chan struct{}, 2), make(chan struct{})
	slow := func(svc *endpoints.Service) error {
		return endpoints.HandleList(svc, "slow", func(_ context.Context, chunk *endpoints.Chunk[int, int]) error {
			entered <- struct{}{}
			<-release
			for _, item := range chunk.Items() {
				item.Reply(item.In)
			}
			return nil
		})
	}
	first := kit.Serve(slow)
	pending := kit.Post("slow", endpointstest.Item("A", 1))
	<-entered
	first.Kill()
	first.Restart()
	<-entered
	close(release)
	if reply := pending.Wait(); reply.Messages != 1 || len(reply.Slots) != 1 {
		t.Errorf("got %+v", reply)
	}
}
