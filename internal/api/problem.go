package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/internal/intake"
	"github.com/tranchehq/tranche/workqueue"
)

const problemType = "application/problem+json"

// inputError is an error about what the caller sent.
type inputError struct{ detail string }

func (e *inputError) Error() string { return e.detail }

// problem turns an error into the answer that a caller gets. What is not the caller's doing is logged here and told
// without its inner parts.
func (s *Server) problem(ctx context.Context, err error) *huma.ErrorModel {
	p := &huma.ErrorModel{Status: status(err), Detail: detail(err)}
	p.Title = http.StatusText(p.Status)
	p.Errors = places(err)
	switch {
	case p.Status < http.StatusInternalServerError:
	case ctx.Err() != nil:
		p.Status, p.Title = http.StatusServiceUnavailable, http.StatusText(http.StatusServiceUnavailable)
		p.Detail = "the request was broken off"
	default:
		s.log.Error("request failed", zap.Error(err))
	}
	return p
}

func status(err error) int {
	var input *inputError
	var row *intake.RowError
	var whole *intake.InputError
	var twice *workqueue.DuplicateKeyError
	var ambiguous *workqueue.AmbiguousError
	var state *workqueue.StateError
	var nothing *workqueue.NothingToRerunError
	var tooBig *http.MaxBytesError
	var postgres *pgconn.PgError
	var connect *pgconn.ConnectError
	switch {
	case errors.As(err, &input), errors.As(err, &row), errors.As(err, &whole), errors.As(err, &twice):
		return http.StatusUnprocessableEntity
	case errors.As(err, &ambiguous), errors.As(err, &state), errors.As(err, &nothing):
		return http.StatusConflict
	case errors.As(err, &tooBig):
		return http.StatusRequestEntityTooLarge
	case errors.Is(err, workqueue.ErrNotFound):
		return http.StatusNotFound
	case errors.As(err, &connect), errors.Is(err, workqueue.ErrSessionLost), errors.As(err, &postgres) &&
		(postgres.Code[:2] == "53" || postgres.Code[:2] == "57"): // no resources; shut down
		return http.StatusServiceUnavailable
	default:
		return http.StatusInternalServerError
	}
}

func detail(err error) string {
	switch status(err) {
	case http.StatusInternalServerError:
		return "something went wrong inside; the log of this tranche serve says what"
	case http.StatusServiceUnavailable:
		return "the database does not answer at the moment; try again soon"
	case http.StatusNotFound:
		return innermost(err) + "; see tranche run list"
	default:
		return innermost(err)
	}
}

// innermost leaves out the names of the operations around an error that is made for the caller.
func innermost(err error) string {
	var row *intake.RowError
	var whole *intake.InputError
	var input *inputError
	var twice *workqueue.DuplicateKeyError
	var ambiguous *workqueue.AmbiguousError
	var state *workqueue.StateError
	var nothing *workqueue.NothingToRerunError
	switch {
	case errors.As(err, &row):
		return row.Error()
	case errors.As(err, &whole):
		return whole.Error()
	case errors.As(err, &input):
		return input.Error()
	case errors.As(err, &twice):
		return twice.Error()
	case errors.As(err, &ambiguous):
		return ambiguous.Error()
	case errors.As(err, &state):
		return state.Error()
	case errors.As(err, &nothing):
		return nothing.Error()
	default:
		return err.Error()
	}
}

// places points at the parts of the input that are meant.
func places(err error) []*huma.ErrorDetail {
	if row, ok := errors.AsType[*intake.RowError](err); ok {
		return []*huma.ErrorDetail{{Message: row.Reason, Location: "items.line", Value: row.Line}}
	}
	if twice, ok := errors.AsType[*workqueue.DuplicateKeyError](err); ok {
		return []*huma.ErrorDetail{{Message: "the key stands twice", Location: "items.line", Value: twice.SecondLine}}
	}
	if ambiguous, ok := errors.AsType[*workqueue.AmbiguousError](err); ok {
		var all []*huma.ErrorDetail
		for _, id := range ambiguous.Matches {
			all = append(all, &huma.ErrorDetail{Message: "one of the runs that fit", Location: "path.run", Value: id})
		}
		return all
	}
	return nil
}

// writeProblem answers outside of an operation.
func writeProblem(w http.ResponseWriter, status int, detail string) {
	sendProblem(w, &huma.ErrorModel{Status: status, Title: http.StatusText(status), Detail: detail})
}

func sendProblem(w http.ResponseWriter, p *huma.ErrorModel) {
	w.Header().Set("Content-Type", problemType)
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p) // the caller is gone when this fails
}
