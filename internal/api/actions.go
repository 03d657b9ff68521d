package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/workqueue"
)

// ActorHeader names who asks for a change, for the audit log. Without authentication it is taken as said.
const ActorHeader = "Tranche-Actor"

// Anonymous is the actor of a change without the header.
const Anonymous = "anonymous"

// Actor is who asks.
type Actor struct {
	Name string `header:"Tranche-Actor" maxLength:"200" default:"anonymous" doc:"who asks, for the audit log"`
}

// RerunSettings says which items to run again: exactly one of Failed, Keys and Codes.
type RerunSettings struct {
	Failed   bool     `json:"failed,omitempty" doc:"all items that failed"`
	Keys     []string `json:"keys,omitempty" maxItems:"100000" nullable:"false" doc:"these items, failed or done"`
	Codes    []string `json:"codes,omitempty" maxItems:"1000" nullable:"false" doc:"items that failed with such a code"`
	Chunk    int      `json:"chunk,omitempty" minimum:"0" maximum:"8192" doc:"new size of slices; 0 keeps it"`
	InFlight int      `json:"in_flight,omitempty" minimum:"0" maximum:"10000" doc:"new limit of slices; 0 keeps it"`
}

// Rerun is a re-run that was set going.
type Rerun struct {
	Run        workqueue.RunID      `json:"run"`
	Items      int64                `json:"items"`
	Blocks     int                  `json:"blocks"`
	Generation workqueue.Generation `json:"generation"`
	Warnings   []string             `json:"warnings"`
}

// Cancelled is a run that was cancelled.
type Cancelled struct {
	Run    workqueue.RunID `json:"run"`
	Items  int64           `json:"items" doc:"items left without an outcome"`
	Slices int             `json:"slices" doc:"requests called back"`
}

func (s *Server) registerActions(api huma.API) {
	register(s, api, huma.Operation{
		OperationID: "rerun", Method: http.MethodPost, Path: "/runs/{run}/rerun", Summary: "Run items again",
		MaxBodyBytes: 64 << 20,
	}, s.rerun)
	register(s, api, huma.Operation{
		OperationID: "cancel-run", Method: http.MethodPost, Path: "/runs/{run}/cancel", Summary: "Cancel a run",
	}, s.cancel)
}

type rerunInput struct {
	RunPath
	Actor
	Body RerunSettings
}

func (s *Server) rerun(ctx context.Context, in *rerunInput) (Rerun, error) {
	chosen := 0
	for _, set := range []bool{in.Body.Failed, len(in.Body.Keys) > 0, len(in.Body.Codes) > 0} {
		if set {
			chosen++
		}
	}
	if chosen != 1 {
		return Rerun{}, &inputError{"choose one of failed, keys and codes"}
	}
	if in.Body.Chunk > bitfield.Size {
		return Rerun{}, &inputError{"chunk is at most 8192"}
	}
	if err := s.mayChange(); err != nil {
		return Rerun{}, err
	}
	id, err := s.store.Resolve(ctx, in.Run)
	if err != nil {
		return Rerun{}, err
	}
	done, err := s.engine.Rerun(ctx, workqueue.RerunRequest{
		Run: id, Actor: in.Name, Chunk: in.Body.Chunk, InFlight: in.Body.InFlight,
		Select: workqueue.Selection{Failed: in.Body.Failed, Keys: in.Body.Keys, Codes: in.Body.Codes},
	})
	if err != nil {
		return Rerun{}, err
	}
	out := Rerun{Run: id, Items: done.Items, Blocks: done.Blocks, Generation: done.Generation, Warnings: []string{}}
	if view, err := s.store.Run(ctx, id); err == nil { // it runs either way; the warnings are extra
		out.Warnings = s.warnings(ctx, view)
	}
	return out, nil
}

type cancelInput struct {
	RunPath
	Actor
}

func (s *Server) cancel(ctx context.Context, in *cancelInput) (Cancelled, error) {
	if err := s.mayChange(); err != nil {
		return Cancelled{}, err
	}
	id, err := s.store.Resolve(ctx, in.Run)
	if err != nil {
		return Cancelled{}, err
	}
	done, err := s.engine.Cancel(ctx, id, in.Name)
	if err != nil {
		return Cancelled{}, err
	}
	return Cancelled{Run: id, Items: done.Items, Slices: len(done.Slices)}, nil
}
