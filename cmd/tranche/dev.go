package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/alecthomas/kong"
	"github.com/fsnotify/fsnotify"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/internal/embedded"
	"github.com/tranchehq/tranche/orchestrator/client"
)

const (
	// changesEnd is how long files must be unchanged before the service is restarted: editors and git write several.
	changesEnd = 200 * time.Millisecond
	// serviceStop is how long a service may take to answer what it holds before it is killed.
	serviceStop = 15 * time.Second
)

// devCommand runs serve and a service, which it restarts when files change.
type devCommand struct {
	serveCommand

	Watch   []string `default:"." help:"Restart the service when a file below this directory changes (${default}); repeatable. Ignores hidden files, node_modules and names that end in ~; a service that writes other files there keeps restarting." placeholder:"DIR"`
	NoOpen  bool     `help:"Do not open the dashboard in a browser."`
	Service []string `arg:"" optional:"" passthrough:"" help:"Command that starts the service, after --; NATS_URL is set for it."`
}

// Run stops the service before the server, so that it can answer its requests.
func (d *devCommand) Run(ctx context.Context, line *kong.Context, term *cli.Console) error {
	if len(d.Service) > 0 && d.Service[0] == "--" {
		d.Service = d.Service[1:]
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ready, served := make(chan *parts, 1), make(chan error, 1)
	d.onReady = func(p *parts) { ready <- p }
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	go func() {
		defer cancel()
		served <- d.serveCommand.Run(serving, line, term)
	}()
	var err error
	select {
	case <-ctx.Done():
	case p := <-ready:
		err = d.develop(ctx, term, p)
	}
	stop()
	return errors.Join(err, <-served)
}

// develop restarts the service on changes and handles typed commands.
func (d *devCommand) develop(ctx context.Context, term *cli.Console, p *parts) error {
	term.URL = d.at(p)
	changes, err := watchFiles(ctx, d.Watch, p.directory)
	if err != nil {
		return err
	}
	term.Note("type r and Enter to rerun the last run, q and Enter to quit; file changes restart the service")
	report := func(err error) {
		if err != nil {
			term.Note("%v", err)
		}
	}
	typed := linesOf(term.In)
	service, ended := d.start(term, p)
	if !d.NoOpen && cli.IsTerminalOut(term) {
		openPage(term.URL)
	}
	for {
		select {
		case <-ctx.Done():
			return stop(ctx, service)
		case <-changes:
			report(stop(ctx, service))
			if service, ended = nil, nil; ctx.Err() == nil {
				service, ended = d.start(term, p)
			}
		case <-ended:
			why := ""
			if err := service.Err(); err != nil {
				why = fmt.Sprintf(" (%v)", err)
			}
			term.Note("the service ended%s; change a file to restart it", why)
			service, ended = nil, nil
		case text, ok := <-typed:
			switch {
			case !ok:
				typed = nil // no terminal
			case text == "q":
				return stop(ctx, service)
			case text == "r":
				report(repeat(ctx, term))
			}
		}
	}
}

// start starts the service; nil: no service.
func (d *devCommand) start(term *cli.Console, p *parts) (service *embedded.Group, ended <-chan struct{}) {
	if len(d.Service) == 0 {
		return nil, nil
	}
	cmd := exec.Command(d.Service[0], d.Service[1:]...) //nolint:noctx // it is ended by signals, not by a context
	// No file, so that Wait also waits for what the command has started, such as the program of go run.
	output := struct{ io.Writer }{term.Err}
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = output, output, 2*serviceStop
	cmd.Env = os.Environ()
	servers := d.NATS
	if p.private {
		text, _ := os.ReadFile(p.natsFile()) // without it the service says what it lacks
		servers = strings.TrimSpace(string(text))
	}
	if servers != "" { // else those of the environment
		cmd.Env = append(cmd.Env, "NATS_URL="+servers)
	}
	service, err := embedded.StartGroup(cmd)
	if err != nil {
		term.Note("the service cannot start: %v; retried when a file changes", err)
		return nil, nil
	}
	return service, service.Done()
}

// stop ends the service. A signal after the one that ends ctx kills the service first: by default it would end this
// process alone.
func stop(ctx context.Context, service *embedded.Group) error {
	if service == nil {
		return nil
	}
	var killed atomic.Bool
	first := ctx.Err() == nil // it stops for a change
	again := make(chan os.Signal, 2)
	signal.Notify(again, os.Interrupt, syscall.SIGTERM)
	defer close(again)
	defer signal.Stop(again)
	go func() {
		if first {
			<-again
		}
		if _, came := <-again; came {
			killed.Store(true)
			service.Kill()
		}
	}()
	inTime := service.Stop(serviceStop)
	switch {
	case killed.Load():
		return errors.New("the service was killed at the second signal")
	case !inTime:
		return fmt.Errorf("the service did not end within %s of SIGTERM and was killed", serviceStop)
	}
	return nil
}

// repeat reruns all items of the last run.
func repeat(ctx context.Context, term *cli.Console) error {
	cl, err := term.Client()
	if err != nil {
		return err
	}
	run, err := cl.GetRun(ctx, "last")
	if err != nil {
		return err
	}
	for _, step := range run.Steps {
		if len(step.Needs) > 0 {
			continue // it follows
		}
		if _, err := cl.Reset(ctx, run.ID, client.ResetSettings{Step: step.Name, All: true, Cascade: true}); err != nil {
			return err
		}
	}
	term.Note("rerunning %s; see: tranche run watch last", run.ID)
	return nil
}

// openPage opens a URL in the browser of the desktop, if there is one. That outlives this process, and Ctrl-C.
func openPage(url string) {
	open := "xdg-open"
	switch {
	case runtime.GOOS == "darwin":
		open = "open"
	case os.Getenv("DISPLAY") == "" && os.Getenv("WAYLAND_DISPLAY") == "":
		return
	}
	_, _ = embedded.StartGroup(exec.Command(open, url)) //nolint:noctx // it lives on; the URL has been printed
}

func linesOf(in io.Reader) <-chan string {
	lines := make(chan string)
	go func() {
		defer close(lines)
		for scanner := bufio.NewScanner(in); scanner.Scan(); {
			lines <- strings.TrimSpace(scanner.Text())
		}
	}()
	return lines
}

// watchFiles reports when files below the directories have changed, except in the directory of the server's data.
func watchFiles(ctx context.Context, directories []string, except string) (<-chan struct{}, error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watch files: %w", err)
	}
	add := func(root string) error {
		return filepath.WalkDir(root, func(at string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.IsDir() {
				return err
			}
			if whole, _ := filepath.Abs(at); at != root && ignored(at) || whole == except {
				return fs.SkipDir
			}
			return w.Add(at)
		})
	}
	for _, root := range directories {
		if err := add(root); err != nil {
			return nil, errors.Join(fmt.Errorf("--watch %s: %w", root, err), w.Close())
		}
	}
	changes := make(chan struct{}, 1)
	go gatherChanges(ctx, w, add, changes)
	return changes, nil
}

// gatherChanges makes one of changes that follow each other quickly, and watches new directories.
func gatherChanges(ctx context.Context, w *fsnotify.Watcher, add func(string) error, changes chan<- struct{}) {
	defer func() { _ = w.Close() }()
	quiet := time.NewTimer(time.Hour)
	quiet.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case event := <-w.Events:
			if ignored(event.Name) || event.Op == fsnotify.Chmod {
				continue
			}
			if event.Has(fsnotify.Create) {
				_ = add(event.Name) // if it is a directory, and still there
			}
			quiet.Reset(changesEnd)
		case <-w.Errors: //nolint:errcheck // events were lost
			quiet.Reset(changesEnd)
		case <-quiet.C:
			select {
			case changes <- struct{}{}:
			default:
			}
		}
	}
}

func ignored(path string) bool {
	name := filepath.Base(path)
	return len(name) > 1 && name[0] == '.' && name != ".." || name == "node_modules" || strings.HasSuffix(name, "~")
}
