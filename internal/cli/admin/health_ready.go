package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/tranchehq/tranche/internal/cli"
)

// readyTimeout is longer than the server gives PostgreSQL to answer.
const readyTimeout = 5 * time.Second

// maxReady bounds what is read of an answer.
const maxReady = 64 << 10

type healthReady struct{}

// Run asks /readyz, which asks nobody for a token.
func (healthReady) Run(ctx context.Context, term *cli.Console) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	where := strings.TrimRight(term.URL, "/") + "/readyz"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, where, nil)
	if err != nil {
		return cli.Usage(fmt.Sprintf("--url %s: %v", term.URL, err))
	}
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("ask %s whether it is ready: %w", where, err)
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxReady))
	if err != nil {
		return fmt.Errorf("ask %s whether it is ready: %w", where, err)
	}
	if answer.StatusCode != http.StatusOK {
		return errors.New("not ready: " + cli.Inert(whyNot(body, answer.Status)))
	}
	if term.JSON {
		return term.Document(map[string]bool{"ready": true})
	}
	return term.Printf("ready\n")
}

// whyNot reads the problem that the server describes, or names the status of whoever else answers there.
func whyNot(body []byte, status string) string {
	var problem struct {
		Detail string `json:"detail"`
	}
	if json.Unmarshal(body, &problem) != nil || problem.Detail == "" {
		return status
	}
	return problem.Detail
}
