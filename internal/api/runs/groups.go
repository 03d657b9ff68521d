package runs

import (
	"context"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/internal/api/kernel"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

type groupsInput struct {
	kernel.RunPath
	By string `query:"by" maxLength:"200" doc:"a field of the payloads, at their top; absent: only the fields are listed"`

	Lanes bool `query:"lanes" doc:"by lane of a run in order instead: the number of a partition, or of a value's lane"`
}

type groupsMapInput struct {
	kernel.RunPath
	By     string `query:"by" required:"true" minLength:"1" maxLength:"200" doc:"a field of the payloads, at their top"`
	From   int32  `query:"from" minimum:"0" maximum:"262143" doc:"the first block: ordinal 8192·from"`
	Blocks int    `query:"blocks" minimum:"1" maximum:"128" default:"128" doc:"how many blocks"`
}

// groupings answers what items have which value of a field.
type groupings struct{ *Routes }

func (s groupings) register(api huma.API) {
	op := kernel.Broad(kernel.Get("get-groups", "/runs/{run}/groups",
		"Items by the value of a field of their payloads, or by lane"))
	op.Description = "How many items have each value and how they stand, over all steps: the 50 most frequent values, " +
		"and all others together. The first look at a field reads the payloads of all items; later ones do not. Of runs " +
		"of more than 16,777,216 items, and by fields or lanes of more than 65,535 different values, there are no groups."
	kernel.Register(s.Kernel, api, op, s.getGroups)
	op = kernel.Broad(kernel.Get("get-groups-map", "/runs/{run}/groups/map",
		"The group of each item as a byte, for a picture of all"))
	op.Description = "One byte for each item, in the order of their ordinals, as of /runs/{run}/planes: the place of " +
		"its value in the groups of /runs/{run}/groups, from 0 on, and 50 for the others."
	op.Responses = planesResponses()
	huma.Register(api, op, s.getGroupsMap)
}

func (s groupings) getGroups(ctx context.Context, in *groupsInput) (*inspect.PayloadGroups, error) {
	id, err := s.groupedRun(ctx, in.Run, in.By)
	if err != nil {
		return nil, err
	}
	switch {
	case in.By != "" && in.Lanes:
		return nil, kernel.BadInput("lanes: it does not go with by; give one of them")
	case in.By == "" && !in.Lanes:
		return inspect.New(s.Store).PayloadFields(ctx, id)
	}
	return inspect.New(s.Store).GroupsBy(ctx, id, in.By)
}

func (s groupings) groupedRun(ctx context.Context, ref, by string) (id workqueue.RunID, err error) {
	if err := kernel.CheckText("by", by, inspect.MaxFieldName); err != nil {
		return id, err
	}
	return inspect.New(s.Store).Resolve(ctx, ref)
}

func (s groupings) getGroupsMap(ctx context.Context, in *groupsMapInput) (*huma.StreamResponse, error) {
	look, cancel := s.Looking(ctx)
	defer cancel()
	id, err := s.groupedRun(look, in.Run, in.By)
	if err != nil {
		return nil, s.Failure(look, err)
	}
	planes, err := inspect.New(s.Store).GroupPlane(look, id, in.By, workqueue.Block(in.From), in.Blocks)
	if err != nil {
		return nil, s.Failure(look, err)
	}
	return planesAnswer(planes), nil
}
