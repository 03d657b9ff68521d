package startup

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/tranchehq/tranche/internal/testing/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// scripted is a PostgreSQL that answers each connection with the next SQLSTATE; hangUp closes it without one. When
// there are no more it takes connections, unless it is stubborn: then the last is its answer indefinitely.
type scripted struct {
	net.Listener
	stubborn bool

	mu    sync.Mutex
	codes []string
	asked int
}

const hangUp = "hang up"

func script(t *testing.T, stubborn bool, codes ...string) *scripted {
	t.Helper()
	l := testenv.Must((&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	s := &scripted{Listener: l, stubborn: stubborn, codes: codes}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			s.answer(conn)
			_ = conn.Close()
		}
	})
	t.Cleanup(func() { _ = l.Close(); serving.Wait() })
	return s
}

func (s *scripted) next() (code string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	if len(s.codes) == 0 {
		return ""
	}
	code = s.codes[0]
	if !s.stubborn || len(s.codes) > 1 {
		s.codes = s.codes[1:]
	}
	return code
}

func (s *scripted) times() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}

func (s *scripted) answer(conn net.Conn) {
	backend := pgproto3.NewBackend(conn, conn)
	first, err := backend.ReceiveStartupMessage()
	if _, ok := first.(*pgproto3.StartupMessage); err != nil || !ok { // pgx cancels what was hung up, beside
		return
	}
	code := s.next()
	if code == hangUp {
		return
	}
	if code != "" {
		backend.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: code, Message: "no"})
		_ = backend.Flush() // who has gone need not know
		return
	}
	backend.Send(&pgproto3.AuthenticationOk{})
	backend.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	_ = backend.Flush()
	_, _ = backend.Receive() // the end
}

// wait knocks with a patience, and returns what was logged.
func (s *scripted) wait(t *testing.T, patience time.Duration) (logged []observer.LoggedEntry, err error) {
	t.Helper()
	core, logs := observer.New(zapcore.InfoLevel)
	config := testenv.Must(pgx.ParseConfig("postgres://u:p@" + s.Addr().String() + "/x?sslmode=disable"))(t)
	wait := DatabaseWait{At: "here", Timeout: patience, Knocking: time.Hour, Log: zap.New(core)}
	err = wait.Until(t.Context(), func(ctx context.Context) error { return wait.Knock(ctx, config) })
	return logs.All(), err
}

// What passes is waited for, and said once; what does not ends the start immediately.
func TestWhatAStartWaitsFor(t *testing.T) {
	t.Parallel()
	for code, says := range map[string]string{
		"57P03": "starting up, or recovering", "57P01": "shutting down", "57P02": "shutting down",
		"53300": "no connection left", "08006": "does not answer", hangUp: "does not answer",
	} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			s := script(t, false, code, code)
			logged, err := s.wait(t, time.Minute)
			if err != nil || s.times() != 3 || len(logged) != 2 || !strings.Contains(logged[0].Message, says) ||
				logged[1].Message != "PostgreSQL is there" {
				t.Errorf("asked %d times, %v: %+v", s.times(), err, logged)
			}
			s = script(t, true, code)
			if _, err := s.wait(t, 150*time.Millisecond); err == nil || !strings.Contains(err.Error(), says) ||
				!strings.Contains(err.Error(), "--database-wait") {
				t.Errorf("one that stays so: %v", err)
			}
			s = script(t, true, code)
			if _, err := s.wait(t, 0); err == nil || s.times() != 1 {
				t.Errorf("without patience: asked %d times, %v", s.times(), err)
			}
		})
	}
	for _, code := range []string{"28P01", "28000", "3D000", "42501", "42704", "22023"} {
		s := script(t, true, "57P03", code)
		if _, err := s.wait(t, time.Hour); err == nil || s.times() != 2 || !strings.Contains(err.Error(), code) {
			t.Errorf("%s: asked %d times, %v", code, s.times(), err)
		}
	}
}

// One of several hosts that takes a connection and stays silent does not keep the next from being tried.
func TestEachHostHasATimeOfItsOwn(t *testing.T) {
	t.Parallel()
	silent := testenv.Must((&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { _ = silent.Close() })
	live := script(t, false)
	config, err := pgx.ParseConfig("postgres://u:p@" + silent.Addr().String() + "," + live.Addr().String() +
		"/x?sslmode=disable&connect_timeout=3600")
	testenv.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for live.times() == 0 { // the second host may be too slow itself
		err := (DatabaseWait{Knocking: 200 * time.Millisecond}).Knock(ctx, config)
		testenv.MustSame(t, ctx.Err(), nil, "the second host was not asked: %v", err)
	}
	testenv.Same(t, config.ConnectTimeout, time.Hour, "the settings of others were changed")
}

// Whatever a try does, a stop ends the wait.
func TestAStopEndsTheWait(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	err := DatabaseWait{Timeout: time.Hour, Log: zap.NewNop()}.Until(ctx, func(context.Context) error {
		stop()
		return &net.DNSError{Name: "db"}
	})
	testenv.Is(t, err, context.Canceled, "the wait")
}
