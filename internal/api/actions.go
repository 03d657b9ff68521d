package api

import (
	"context"
	"io"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/workqueue"
)

// ActorHeader names who asks for a change, for the audit log. Without authentication it is taken as said.
const ActorHeader = "Tranche-Actor"

// Anonymous is the actor of a change without the header.
const Anonymous = "anonymous"

// maxActorBytes bounds what the audit log is told.
const maxActorBytes = 800 // 200 characters

// Actor is who asks.
type Actor struct {
	Name string `header:"Tranche-Actor" maxLength:"200" default:"anonymous" doc:"who asks, for the audit log"`
}

// RerunSettings says which items to run again: exactly one of Failed, Keys and Codes. As JSON it takes 16 MiB at most.
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
		Description: "The body is 16 MiB at most; more keys go in several requests.",
	}, s.rerun)
	// Only described: with a body of its own huma would hold all of it in memory, several times.
	described := api.OpenAPI().Paths["/runs/{run}/rerun"].Post
	described.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{"application/json": {
		Schema: huma.SchemaFromType(api.OpenAPI().Components.Schemas, typeOf[RerunSettings]()),
	}}}
	register(s, api, huma.Operation{
		OperationID: "cancel-run", Method: http.MethodPost, Path: "/runs/{run}/cancel", Summary: "Cancel a run",
	}, s.cancel)
}

type rerunInput struct {
	RunPath
	Actor

	body io.Reader
}

// Resolve takes the body as it comes: it may be large.
func (in *rerunInput) Resolve(ctx huma.Context) []error {
	in.body = ctx.BodyReader()
	return nil
}

func (s *Server) rerun(ctx context.Context, in *rerunInput) (Rerun, error) {
	set, err := readRerun(in.body)
	if err != nil {
		drain(in.body)
		return Rerun{}, err
	}
	if err := chooseOne("failed, keys and codes", set.Failed, len(set.Keys) > 0, len(set.Codes) > 0); err != nil {
		return Rerun{}, err
	}
	if err := s.mayChange(in.Name); err != nil {
		return Rerun{}, err
	}
	id, err := s.store.Resolve(ctx, in.Run)
	if err != nil {
		return Rerun{}, err
	}
	done, err := s.engine.Rerun(ctx, workqueue.RerunRequest{
		Run: id, Actor: in.Name, Chunk: set.Chunk, InFlight: set.InFlight,
		Select: workqueue.Selection{Failed: set.Failed, Keys: set.Keys, Codes: set.Codes},
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

// chooseOne refuses a selection of which not exactly one way is used.
func chooseOne(ways string, used ...bool) error {
	chosen := 0
	for _, u := range used {
		if u {
			chosen++
		}
	}
	if chosen != 1 {
		return &inputError{"choose one of " + ways}
	}
	return nil
}

// drain reads the rest of a body that was refused: a client that is still sending would otherwise see its connection
// reset instead of the answer.
func drain(body io.Reader) {
	if timed, ok := body.(*timedBody); ok {
		timed.within(drainTimeout)
	}
	_, _ = io.CopyN(io.Discard, body, maxDrained) // as much as there is
}

type cancelInput struct {
	RunPath
	Actor
}

func (s *Server) cancel(ctx context.Context, in *cancelInput) (Cancelled, error) {
	if err := s.mayChange(in.Name); err != nil {
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
