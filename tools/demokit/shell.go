package demokit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/tranchehq/tranche/internal/backoff"
)

const (
	stopGrace  = 5 * time.Second        // for a command to stop before it is killed
	askEvery   = 100 * time.Millisecond // between two attempts
	getTimeout = 5 * time.Second
)

// Shell runs tranche commands in a directory.
type Shell struct {
	Program  string
	Dir      string
	Env      []string
	Out, Err io.Writer
	Story    *Story
}

func (sh *Shell) Command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, sh.Program, args...)
	cmd.Dir, cmd.Env = sh.Dir, sh.Env
	Gently(cmd)
	return cmd
}

// Gently makes the end of the context send SIGTERM, and kill only after a grace period.
func Gently(cmd *exec.Cmd) {
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = stopGrace
}

// Typed shows a command and runs it on the user's terminal. It must end with the exit code.
func (sh *Shell) Typed(ctx context.Context, exit int, args ...string) error {
	sh.Story.Command("tranche " + quoted(args))
	cmd := sh.Command(ctx, args...)
	cmd.Stdout, cmd.Stderr = sh.Out, sh.Err
	return expect(ctx, exit, "tranche "+strings.Join(args[:min(2, len(args))], " "), cmd.Run())
}

func quoted(args []string) string {
	typed := slices.Clone(args)
	for i, arg := range typed {
		if strings.ContainsAny(arg, " {") {
			typed[i] = "'" + arg + "'"
		}
	}
	return strings.Join(typed, " ")
}

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

// Piped pipes the output of from into a tranche command.
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
	// The children have their ends; close ours, or neither would see EOF.
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

// Ask runs a command without showing it and decodes its JSON output.
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

// AwaitService waits until the endpoint has want listeners of a version ("" is any), or the service ended.
func (sh *Shell) AwaitService(ctx context.Context, service *Child, endpoint, version string, want int) error {
	return Await(ctx, service.name, service, func(ctx context.Context) error {
		var list struct {
			Endpoints []struct {
				Name      string `json:"name"`
				Listeners []struct {
					Version string `json:"version"`
					State   string `json:"state"`
				} `json:"listeners"`
			} `json:"endpoints"`
		}
		err := sh.Ask(ctx, &list, "endpoints")
		there := 0
		for _, e := range list.Endpoints {
			for _, l := range e.Listeners {
				if e.Name == endpoint && (version == "" || l.Version == version) && l.State == "listening" {
					there++
				}
			}
		}
		if err == nil && there < want {
			err = fmt.Errorf("%d of %d listen on %s", there, want, endpoint)
		}
		return err
	})
}

// Await retries try until it succeeds, the child about ends, or readyTimeout passes; then it returns try's error.
func Await(ctx context.Context, what string, about *Child, try func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	var ended <-chan struct{}
	if about != nil {
		ended = about.exited
	}
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ended:
			return about.Failure()
		default:
		}
		if late := backoff.Sleep(ctx, askEvery); late != nil {
			return fmt.Errorf("wait for %s: %w", what, errors.Join(late, err))
		}
	}
}

// Get decodes a JSON document of a server into into, or discards it if into is nil.
func Get(ctx context.Context, url string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, getTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", url, answer.Status)
	}
	if into == nil {
		return nil
	}
	return json.NewDecoder(answer.Body).Decode(into)
}
