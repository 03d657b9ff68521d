// Command withpostgres runs a command, such as go test, with a PostgreSQL server for all test binaries that it starts.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/tranchehq/tranche/internal/testing/testenv"
)

func main() {
	command := exec.Command(os.Args[1], os.Args[2:]...)
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, os.Stdout, os.Stderr
	signal.Notify(make(chan os.Signal, 1), os.Interrupt, syscall.SIGTERM) // a terminal sends them to the command, too
	err := testenv.WithPostgres(command)
	if exit, is := errors.AsType[*exec.ExitError](err); is {
		os.Exit(exit.ExitCode())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "withpostgres:", err)
		os.Exit(1)
	}
}
