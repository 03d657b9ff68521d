package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// ErrNoCluster is returned for a directory in which no cluster was ever made.
var ErrNoCluster = errors.New("there is no private PostgreSQL in this directory")

// Exists reports whether a cluster was made in the data directory of a PostgresConfig.
func Exists(dataDir string) bool {
	_, err := os.Stat(filepath.Join(newLayout(dataDir).cluster, "PG_VERSION"))
	return err == nil
}

// RunningURL returns where the server answers that another process runs in this data directory.
func RunningURL(ctx context.Context, dataDir string) (string, error) {
	dir, err := filepath.Abs(dataDir)
	if err != nil {
		return "", fmt.Errorf("find the private PostgreSQL in %s: %w", dataDir, err)
	}
	l := newLayout(dir)
	if !Exists(dir) {
		return "", fmt.Errorf("%s: %w", dir, ErrNoCluster)
	}
	at, err := l.chooseAddress(ctx)
	if err != nil {
		return "", err
	}
	if at.socketDir == "" { // the port is what the server found free
		if at.port, err = postmasterPort(filepath.Join(l.cluster, "postmaster.pid")); err != nil {
			return "", fmt.Errorf("find the private PostgreSQL in %s: %w", dir, err)
		}
	}
	return at.url(DefaultDatabase), nil
}

// postmasterPort reads the fourth line of the file that a server keeps while it runs.
func postmasterPort(path string) (int, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, errors.New("it does not run")
	}
	if err != nil {
		return 0, err
	}
	lines := strings.Split(string(text), "\n")
	if len(lines) < 4 {
		return 0, errors.New("it is just starting; try again")
	}
	return strconv.Atoi(strings.TrimSpace(lines[3]))
}
