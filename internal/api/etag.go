package api

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/workqueue/inspect"
)

// Known is what a caller has already.
type Known struct {
	IfNoneMatch []string `header:"If-None-Match" doc:"the ETag of what the caller has: 304 when it is still the same"`
}

func (k *Known) known() []string { return k.IfNoneMatch }

// taggedAnswer is an answer that says by which tag it is known.
type taggedAnswer[T any] struct {
	Status int
	ETag   string `header:"ETag"`
	Body   T
}

// registerTagged is register for documents that callers ask for again and again. tag is the ETag of one.
func registerTagged[In, Out any](
	s *Server, api huma.API, op huma.Operation, handle func(ctx context.Context, in *In) (Out, error),
	known func(*In) *Known, tag func(*Out) (string, error),
) {
	op.Responses = map[string]*huma.Response{"304": {Description: "It is as the caller knows it."}}
	huma.Register(api, op, func(ctx context.Context, in *In) (*taggedAnswer[Out], error) {
		ctx, cancel := context.WithTimeoutCause(ctx, s.config.LookTimeout, errTooSlow)
		defer cancel()
		out, err := handle(ctx, in)
		if err != nil {
			return nil, s.failure(ctx, err)
		}
		answer := &taggedAnswer[Out]{Status: http.StatusOK, Body: out}
		if answer.ETag, err = tag(&out); err != nil {
			return nil, s.failure(ctx, err)
		}
		if matches(known(in).known(), answer.ETag) {
			answer.Status = http.StatusNotModified
		}
		return answer, nil
	})
}

// matches compares tags as If-None-Match does: whether they are weak does not matter.
func matches(known []string, tag string) bool {
	for _, list := range known {
		for one := range strings.SplitSeq(list, ",") {
			one = strings.TrimSpace(one)
			if one == "*" || strings.TrimPrefix(one, "W/") == strings.TrimPrefix(tag, "W/") {
				return true
			}
		}
	}
	return false
}

// printOf is a fingerprint of a document.
func printOf(doc any) (string, error) {
	text, err := json.Marshal(doc)
	if err != nil {
		return "", err //nolint:wrapcheck // names what cannot be written
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:12]), nil
}

// runTag is weak: what only the clock changes is no change.
func runTag(run *RunDocument) (string, error) {
	still := *run
	still.At, still.Seconds = time.Time{}, 0
	sum, err := printOf(&still)
	return `W/"` + sum + `"`, err
}

func itemsTag(items *KeyItems) (string, error) {
	sum, err := printOf(items)
	return `"` + sum + `"`, err
}

// planTag begins with the version, which is what an apply goes by: runs that were started since change nothing that it
// could undo.
func planTag(plan **inspect.PlanView) (string, error) {
	sum, err := printOf(*plan)
	return fmt.Sprintf(`"%d-%s"`, (*plan).Version, sum), err
}

// planTagVersion is the version in the tag of a plan.
func planTagVersion(tag string) (int, error) {
	number, _, _ := strings.Cut(strings.Trim(strings.TrimSpace(tag), `"`), "-")
	version, err := strconv.Atoi(number)
	if err != nil || version < 1 || version > maxPlanVersion {
		return 0, &inputError{"If-Match is not the ETag of a plan; give the one that GET /plans/{name} had"}
	}
	return version, nil
}
