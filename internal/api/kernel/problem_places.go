package kernel

import (
	"errors"
	"fmt"
	"slices"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/endpoints/fanout"
	"github.com/tranchehq/tranche/gather/strictyaml"
	"github.com/tranchehq/tranche/internal/intake"
	"github.com/tranchehq/tranche/internal/intake/row"
	"github.com/tranchehq/tranche/internal/producers"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/start"
)

// operationPlace points at the operation that is meant.
func operationPlace(err error) []*huma.ErrorDetail {
	op, ok := errors.AsType[*producers.OpError](err)
	switch {
	case !ok || op.Number == 0 && op.Line == 0:
		return nil
	case op.Line == 0:
		return []*huma.ErrorDetail{{Message: op.Problem, Location: "operations.number", Value: op.Number}}
	}
	return []*huma.ErrorDetail{{Message: op.Problem, Location: "operations.line", Value: op.Line}}
}

// problemOfTracker stands before the code in the type of a problem.
const problemOfTracker = "urn:tranche:tracker:"

// trackerPlace points at the text that an error of the tracker service is about.
func trackerPlace(bad *fanout.Error) []*huma.ErrorDetail {
	if bad.Place == "" {
		return nil
	}
	detail := &huma.ErrorDetail{Message: bad.Message, Location: "body." + bad.Place}
	switch bad.Place {
	case "after", "limit", "missing", "state": // no body has such members
		detail.Location = "query." + bad.Place
	}
	if bad.Value != "" {
		detail.Value = bad.Value
	}
	return []*huma.ErrorDetail{detail}
}

// places points at the parts of the input that are meant.
func places(err error) []*huma.ErrorDetail {
	if line, ok := errors.AsType[*row.LineError](err); ok {
		return []*huma.ErrorDetail{{Message: line.Reason, Location: "items.line", Value: line.Line}}
	}
	if bad, ok := errors.AsType[*intake.InvalidError](err); ok {
		var all []*huma.ErrorDetail
		for i := range bad.Places {
			p := &bad.Places[i]
			all = append(all, &huma.ErrorDetail{Message: fmt.Sprintf("key %q, %s", Cut(p.Key, MaxEchoed), p.What()),
				Location: "items." + p.Unit, Value: p.Line})
		}
		return all
	}
	if record, ok := errors.AsType[*row.RecordError](err); ok {
		return []*huma.ErrorDetail{{Message: record.Reason, Location: "items." + record.Unit, Value: record.Number}}
	}
	if twice, ok := errors.AsType[*workqueue.DuplicateKeyError](err); ok {
		return []*huma.ErrorDetail{{Message: "the key stands twice", Location: "items.line", Value: twice.SecondLine}}
	}
	if item, ok := errors.AsType[*start.ItemOrderError](err); ok {
		return []*huma.ErrorDetail{{Message: item.Problem, Location: "items.line", Value: item.Line}}
	}
	if ambiguous, ok := errors.AsType[*workqueue.AmbiguousError](err); ok {
		var all []*huma.ErrorDetail
		for _, id := range ambiguous.Matches {
			all = append(all, &huma.ErrorDetail{Message: "one of the runs that fit", Location: "path.run", Value: id})
		}
		return all
	}
	return slices.Concat(yamlPlace(err), operationPlace(err))
}

// yamlPlace points into what was sent as YAML.
func yamlPlace(err error) []*huma.ErrorDetail {
	bad, ok := errors.AsType[*strictyaml.Error](err)
	if !ok || bad.Line == 0 {
		return nil
	}
	return []*huma.ErrorDetail{{Message: bad.Problem, Location: bad.Kind + ".line", Value: bad.Line}}
}
