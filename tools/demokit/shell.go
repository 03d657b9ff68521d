package demokit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/tranchehq/tranche/internal/backoff"
)

// stopGrace is how long a command may take to stop, before it is killed.
const stopGrace = 5 * time.Second

// askEvery is how often it is asked whether a service is there.
const askEvery = 100 * time.Millisecond

// Shell runs commands of tranche in a directory, as the person would type them.
type Shell struct {
	Program  string
	Dir      string
	Env      []string
	Out, Err io.Writer
	Story    *Story
}

// Command returns a command of tranche.
func (sh *Shell) Command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, sh.Program, args...)
	cmd.Dir, cmd.Env = sh.Dir, sh.Env
	Gently(cmd)
	return cmd
}

// Gently has the end of the context ask the program to stop, rather than kill it.
func Gently(cmd *exec.Cmd) {
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = stopGrace
}

// Typed shows a command and runs it, with the person's terminal as its own. It must end with the exit code.
func (sh *Shell) Typed(ctx context.Context, exit int, args ...string) error {
	sh.Story.Command("tranche " + quoted(args))
	cmd := sh.Command(ctx, args...)
	cmd.Stdout, cmd.Stderr = sh.Out, sh.Err
	return expect(ctx, exit, "tranche "+strings.Join(args[:min(2, len(args))], " "), cmd.Run())
}

// quoted is how arguments are typed.
func quoted(args []string) string {
	typed := slices.Clone(args)
	for i, arg := range typed {
		if strings.ContainsAny(arg, " {") {
			typed[i] = "'" + arg + "'"
		}
	}
	return strings.Join(typed, " ")
}

// expect makes an error of what exec returned, unless it is the exit code.
func expect(ctx context.Context, exit int, name string, err error) error {
	var code *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &code) && code.ExitCode() == exit, err == nil && exit == 0:
		return nil
	case err == nil || code != nil:
		return commandError(name, exit, err, "")
	default:
		return fmt.Errorf("run %s: %w", name, err)
	}
}

// Piped runs from with its output as the input of the typed command.
func (sh *Shell) Piped(ctx context.Context, from *exec.Cmd, exit int, args ...string) error {
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("pipe: %w", err)
	}
	var said strings.Builder
	from.Stdout, from.Stderr = w, &said
	Gently(from)
	to := sh.Command(ctx, args...)
	to.Stdin, to.Stdout, to.Stderr = r, sh.Out, sh.Err
	err = to.Start()
	if err == nil {
		err = from.Start()
	}
	// The children have their ends; ours must go, or neither would see the other's end.
	err = errors.Join(err, r.Close(), w.Close())
	if to.Process == nil {
		return err
	}
	if from.Process != nil {
		if fromErr := from.Wait(); fromErr != nil {
			err = errors.Join(err, commandError("psql", 0, fromErr, said.String()))
		}
	}
	return errors.Join(err, expect(ctx, exit, "tranche run start", to.Wait()))
}

// Ask runs a command unseen and decodes the JSON that it prints.
func (sh *Shell) Ask(ctx context.Context, into any, args ...string) error {
	cmd := sh.Command(ctx, append([]string{"--json"}, args...)...)
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	name := "tranche " + strings.Join(args, " ")
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return commandError(name, 0, err, said.String())
	}
	if err := json.Unmarshal(out, into); err != nil {
		return fmt.Errorf("understand what %s prints: %w", name, err)
	}
	return nil
}

// endpointList is what tranche endpoints prints, as far as it is needed here.
type endpointList struct {
	Endpoints []struct {
		Name      string     `json:"name"`
		Listeners []struct{} `json:"listeners"`
	} `json:"endpoints"`
}

// listens reports whether there is a service for the endpoint.
func (sh *Shell) listens(ctx context.Context, endpoint string) (bool, error) {
	var list endpointList
	if err := sh.Ask(ctx, &list, "endpoints"); err != nil {
		return false, err
	}
	for _, e := range list.Endpoints {
		if e.Name == endpoint && len(e.Listeners) > 0 {
			return true, nil
		}
	}
	return false, nil
}

// AwaitService returns when the service listens, or has ended.
func (sh *Shell) AwaitService(ctx context.Context, service *Child, endpoint string) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	for {
		listening, err := sh.listens(ctx, endpoint)
		if err == nil && listening {
			return nil
		}
		select {
		case <-service.exited:
			return service.Failure()
		default:
		}
		if err := errors.Join(err, backoff.Sleep(ctx, askEvery)); err != nil {
			return fmt.Errorf("wait for %s (its log: %s): %w", service.name, service.log, err)
		}
	}
}
