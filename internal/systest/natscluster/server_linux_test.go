package natscluster

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/embedded"
)

// natsProcess is one process of a cluster.
type natsProcess struct {
	name, dir, config      string
	client, route, monitor int // its ports

	cmd   *exec.Cmd
	ended chan struct{} // closed when the process has ended; nil before the first start
	// paused and isolated are what a test has done to it.
	paused, isolated bool
}

func (s *natsProcess) log() string { return filepath.Join(s.dir, "log") }

// start runs the test binary as the server. It dies with us.
func (s *natsProcess) start(t testing.TB) {
	t.Helper()
	if s.runs() {
		t.Fatalf("NATS server %s runs already", s.name)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), natsServerVariable+"="+s.config)
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	embedded.DieWithParent(cmd.SysProcAttr, syscall.SIGKILL)
	ended := make(chan struct{})
	if err := embedded.StartChild(cmd, func(error) { close(ended) }); err != nil { // most are killed
		t.Fatalf("start NATS server %s: %v", s.name, err)
	}
	s.cmd, s.ended, s.paused = cmd, ended, false
	await(t, "NATS server "+s.name+" listens", func() bool {
		if !s.runs() {
			t.Fatalf("NATS server %s has ended:\n%s", s.name, s.said())
		}
		conn, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", s.client), time.Second)
		if err != nil {
			return false
		}
		_ = conn.Close() // it was only knocked at
		return true
	})
}

// runs reports whether the process is there, asleep or not.
func (s *natsProcess) runs() bool {
	if s.ended == nil {
		return false
	}
	select {
	case <-s.ended:
		return false
	default:
		return true
	}
}

// answers reports whether the process is there and awake.
func (s *natsProcess) answers() bool { return s.runs() && !s.paused }

func (s *natsProcess) signal(t testing.TB, sig syscall.Signal) {
	t.Helper()
	if !s.runs() {
		t.Fatalf("NATS server %s does not run; it was to get %v", s.name, sig)
	}
	if err := s.cmd.Process.Signal(sig); err != nil {
		t.Fatalf("NATS server %s: %v", s.name, err)
	}
}

// end is for the end of the test: no one needs its store any more.
func (s *natsProcess) end(t testing.TB) {
	t.Helper()
	if s.runs() {
		_ = s.cmd.Process.Kill() // it may have ended in between
		<-s.ended
	}
	if t.Failed() && s.ended != nil {
		t.Logf("NATS server %s said:\n%s", s.name, s.said())
	}
}

// said is the end of the server's log.
func (s *natsProcess) said() string {
	const most = 8 << 10
	text, err := os.ReadFile(s.log())
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-most):])
}
