package client

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// ProblemError is an answer that says no.
type ProblemError struct {
	Status int    `json:"status"`
	Title  string `json:"title"`
	Detail string `json:"detail"`
	Errors []struct {
		Message  string `json:"message"`
		Location string `json:"location"`
		Value    any    `json:"value"`
	} `json:"errors"`
}

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

// UnreachableError is returned when nobody answers.
type UnreachableError struct {
	URL string
	Err error
}

func (e *UnreachableError) Error() string {
	return fmt.Sprintf("no tranche answers at %s; start one with: tranche serve", e.URL)
}

func (e *UnreachableError) Unwrap() error { return e.Err }

func readProblem(answer *http.Response) error {
	p := &ProblemError{Status: answer.StatusCode, Title: http.StatusText(answer.StatusCode)}
	if !strings.HasPrefix(answer.Header.Get("Content-Type"), "application/problem+json") {
		p.Detail = fmt.Sprintf("%s answered %s; is a tranche serve there?", answer.Request.URL.Host, answer.Status)
		return p
	}
	if err := json.NewDecoder(io.LimitReader(answer.Body, 1<<20)).Decode(p); err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	return p
}
