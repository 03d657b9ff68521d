package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// ErrNotModified is returned when the answer still has the ETag of [IfNoneMatch].
var ErrNotModified = errors.New("it is the same as before")

const maxProblem = 1 << 20

// NothingToDo is the type of the problem that a selection has nothing to change.
const NothingToDo = "urn:tranche:nothing_to_do"

// Problem is the body of an error answer: RFC 9457.
type Problem = ErrorModel

// ProblemError is an error answer.
type ProblemError struct {
	Problem

	// RetryAfter is the server's Retry-After, after a 429 or when it is busy. 0: none.
	RetryAfter time.Duration
}

// Error returns the server's message, for invalid input with up to five places.
func (p *ProblemError) Error() string {
	text := p.Detail
	if text == "" {
		text = fmt.Sprintf("the server answered %d %s", p.Status, p.Title)
	}
	for i, e := range p.Errors {
		if p.Status != http.StatusUnprocessableEntity || p.Detail != "validation failed" || i == 5 {
			break
		}
		text += fmt.Sprintf("; %s: %s", e.Location, e.Message)
	}
	return text
}

// UnreachableError is returned when no connection can be made.
type UnreachableError struct {
	URL string
	Err error
}

func (e *UnreachableError) Error() string {
	return fmt.Sprintf("no tranche answers at %s; start one with: tranche serve", e.URL)
}

func (e *UnreachableError) Unwrap() error { return e.Err }

// ActPendingError is returned if nothing was done because another administrator must confirm it (serve --four-eyes).
type ActPendingError struct{ ID string }

func (e *ActPendingError) Error() string {
	return "nothing was done: another administrator must confirm it within a day: tranche act confirm " + e.ID
}

// NoResponseError is returned when a server accepted the connection but did not answer.
type NoResponseError struct {
	URL  string
	Wait time.Duration
}

func (e *NoResponseError) Error() string {
	return fmt.Sprintf("%s accepted the connection but has not answered for %s; check tranche serve "+
		"(its log, and %s/readyz), or wait longer", e.URL, e.Wait, e.URL)
}

// Timeout marks it as a timeout, as in [net.Error].
func (e *NoResponseError) Timeout() bool { return true }

func readProblem(answer *http.Response) error {
	p := &ProblemError{Problem: Problem{Status: answer.StatusCode, Title: http.StatusText(answer.StatusCode)}}
	if s, err := strconv.Atoi(answer.Header.Get("Retry-After")); err == nil && s > 0 {
		p.RetryAfter = time.Duration(s) * time.Second
	}
	if !strings.HasPrefix(answer.Header.Get("Content-Type"), "application/problem+json") {
		p.Detail = fmt.Sprintf("%s answered %s; is a tranche serve there?", answer.Request.URL.Host, answer.Status)
		return p
	}
	if err := json.NewDecoder(io.LimitReader(answer.Body, maxProblem)).Decode(&p.Problem); err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	return p
}
