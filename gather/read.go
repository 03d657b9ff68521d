package gather

import (
	"cmp"
	"encoding/json"
	"errors"
	"reflect"
	"strings"

	"github.com/tranchehq/tranche/gather/strictyaml"
	"github.com/tranchehq/tranche/workqueue"
)

// PlanSchema returns the JSON Schema of a plan's YAML.
func PlanSchema() map[string]any {
	return strictyaml.Schema(func(doc *strictyaml.Document) error { return readPlan(doc, &Plan{}) })
}

func readPlan(doc *strictyaml.Document, plan *Plan) error {
	return doc.Root.Fields(documented([]strictyaml.Field{
		{Name: "name", Read: strictyaml.Into(&plan.Name)},
		{Name: "priority", Read: strictyaml.Into(&plan.Priority)},
		{Name: "done_by", Read: word(&plan.DoneBy, workqueue.ParseDoneBy, workqueue.ErrDoneBy)},
		{Name: "gentle", Read: strictyaml.Into(&plan.Gentle)},
		{Name: "max_failed", Read: word(&plan.MaxFailed, workqueue.ParseMaxFailed, workqueue.ErrMaxFailed)},
		{Name: "fail_fast", Read: word(&plan.FailFast, workqueue.CanonicalFailFast, workqueue.ErrFailFast)},
		{Name: "canary", Read: strictyaml.Into(&plan.Canary)},
		{Name: "canary_auto_approve", Read: strictyaml.Into(&plan.CanaryAutoApprove)},
		{Name: "order_by", Read: strictyaml.Into(&plan.Order.By)},
		{Name: "values", Read: strictyaml.Into(&plan.Order.Values, `min:"1"`)},
		{Name: "partitions", Read: strictyaml.Into(&plan.Order.Partitions, `min:"1" max:"65536"`)},
		{Name: "on_failure", Read: func(v strictyaml.Value) error {
			err := strictyaml.Into(&plan.OnFailure, `enum:"continue,stop"`)(v)
			plan.OnFailure = canonicalText(plan.OnFailure, ParseOnFailure)
			return err
		}},
		{Name: "items", Read: strictyaml.Into(&plan.Items)},
		{Name: "steps", Read: func(v strictyaml.Value) error {
			return v.List(func(v strictyaml.Value) error {
				step, err := readStep(doc, v)
				plan.Steps = append(plan.Steps, step)
				return err
			})
		}},
	})...)
}

func word(into *string, parse func(string) (string, error), want error) func(strictyaml.Value) error {
	return func(v strictyaml.Value) (err error) {
		said, ok := v.Plain()
		if ok {
			*into, err = parse(said)
		}
		if !ok || err != nil {
			return v.Fail("%v; this is %s", cmp.Or(err, want), v.Kind())
		}
		return nil
	}
}

func readStep(doc *strictyaml.Document, v strictyaml.Value) (Step, error) {
	step := defaultStep()
	var over workqueue.StepOverrides
	auto := map[string]**bool{"chunk": new(*bool), "in_flight": new(*bool)}
	fields := []strictyaml.Field{
		{Name: "name", Read: strictyaml.Into(&step.Name)},
		{Name: "endpoint", Read: strictyaml.Into(&step.Endpoint)},
		{Name: "direct", Read: strictyaml.Into(&step.Direct)},
		{Name: "http", Read: strictyaml.Into(&step.HTTP)},
		{Name: "sql", Read: strictyaml.Into(&step.SQL)},
		{Name: "local", Read: strictyaml.Into(&step.Local)},
		{Name: "needs", Read: strictyaml.Into(&step.Needs)},
		{Name: "inputs", Read: func(v strictyaml.Value) error {
			err := v.Decode(&step.Inputs)
			if step.Inputs == nil {
				step.Inputs = []string{} // an empty list differs from nil
			}
			return err
		}},
		{Name: "optional", Read: strictyaml.Into(&step.Optional)},
		{Name: "barrier", Read: readBarrier(&step)},
		{Name: "approvers", Read: strictyaml.Into(&step.Approval, `enum:"anyone,other"`)},
	}
	for name, field := range over.Fields() {
		fields = append(fields, strictyaml.Field{Name: name, Read: settingOf(field)})
		if into := auto[name]; into != nil {
			fields = append(fields, strictyaml.Field{Name: name + "_auto", Read: strictyaml.Into(into)})
		}
	}
	err := v.Fields(documented(fields)...)
	step.Chunk = step.defaultChunk()
	for name, field := range over.Fields() {
		if number, ok := field.(**workqueue.Adaptive); ok && err == nil {
			err = together(doc, v.Path()+"."+name, number, *auto[name])
		}
	}
	step.StepSettings = step.Over(&over)
	if !v.Given("name") {
		step.Name = step.ownName()
	}
	return step, err
}

// readBarrier reads true, false or approve. approve implies approvers: anyone unless approvers is set, in any order.
func readBarrier(step *Step) func(strictyaml.Value) error {
	return func(v strictyaml.Value) error {
		if said, ok := v.Plain(); ok && said == string(barrierApprove) {
			step.Barrier = true
			step.Approval = cmp.Or(step.Approval, ApproveAnyone)
			return nil
		}
		if strictyaml.Into(&step.Barrier)(v) != nil {
			return v.Wrong("true, false or approve")
		}
		return nil
	}
}

// together combines a number or auto with the field plus _auto, which makes the number an upper bound; nil if unset.
func together(doc *strictyaml.Document, path string, number **workqueue.Adaptive, auto *bool) error {
	is := *number
	switch {
	case auto == nil:
	case is == nil && *auto:
		*number = &workqueue.Adaptive{Auto: true}
	case is == nil || is.Auto && !*auto:
		return doc.Fail(path+"_auto", "without auto, %s must be a number", path[strings.LastIndexByte(path, '.')+1:])
	default:
		is.Auto = *auto
	}
	return nil
}

// ReadYAML implements strictyaml.Reader.
func (h *HTTP) ReadYAML(v strictyaml.Value) error {
	type settings HTTP
	*h = *defaultHTTP()
	err := v.Decode((*settings)(h))
	if !v.Given("method") {
		h.Method = h.defaultMethod()
	}
	return err
}

// ReadYAML implements strictyaml.Reader.
func (j *JSON) ReadYAML(v strictyaml.Value) error { return v.Decode((*json.RawMessage)(j)) }

// ReadYAML implements strictyaml.Reader.
func (q *SQL) ReadYAML(v strictyaml.Value) error {
	type settings SQL
	*q = *defaultSQL()
	return v.Decode((*settings)(q))
}

// ReadYAML implements strictyaml.Reader. An invalid encoding or delimiter is kept for Validate to reject.
func (i *Items) ReadYAML(v strictyaml.Value) error {
	type settings Items
	err := v.Fields(documented(strictyaml.FieldsOf((*settings)(i)))...)
	i.Header = canonicalHeader(i.Header)
	i.OnInvalid, i.Contract = canonicalText(i.OnInvalid, parseOnInvalid), canonicalText(i.Contract, parseContract)
	i.Encoding, i.Delimiter = canonicalText(i.Encoding, parseEncoding), canonicalText(i.Delimiter, ParseDelimiter)
	return err
}

// settingOf returns a reader of a step setting, by its field's type.
func settingOf(field any) func(strictyaml.Value) error {
	into, ok := field.(**float64)
	if !ok {
		return strictyaml.Into(field)
	}
	return func(v strictyaml.Value) error {
		digits, _ := v.Number()
		rate, err := workqueue.ParseRate(digits)
		if err != nil {
			return v.Fail("%v; this is %s", err, v.Kind())
		}
		*into = &rate
		return nil
	}
}

// ReadYAML reads overrides by the names of the flags.
func (o *Overrides) ReadYAML(v strictyaml.Value) error {
	steps := func(v strictyaml.Value) error {
		return v.Entries("settings by the names of steps", func(step string, v strictyaml.Value) error {
			return v.Fields(overrideFields(stepSettings(&workqueue.StepOverrides{}), func(name, text string) error {
				return o.SetStep(step + "." + name + "=" + text)
			})...)
		})
	}
	return v.Fields(append(overrideFields(o.settings(), o.Set), strictyaml.Field{Name: "steps", Read: steps})...)
}

func overrideFields(settings []setting, set func(name, text string) error) []strictyaml.Field {
	fields := make([]strictyaml.Field, len(settings))
	for i, s := range settings {
		read := func(v strictyaml.Value) error {
			text, ok := v.Plain()
			if !ok {
				return v.Wrong("a value")
			}
			err := set(s.field, text)
			if bad, ok := errors.AsType[*FieldError](err); ok {
				return v.Fail("%s", bad.Problem)
			}
			return err
		}
		fields[i] = strictyaml.Field{Name: s.field, Read: read}
		switch s.field {
		case "retry_codes", "no_retry_codes", "columns", "rename", "types":
			fields[i].Read = func(v strictyaml.Value) error { return v.List(read) }
		}
	}
	return documented(fields)
}

// documented adds what the flags say of the same settings.
func documented(fields []strictyaml.Field) []strictyaml.Field {
	for _, flag := range reflect.VisibleFields(reflect.TypeFor[Overrides]()) {
		name, _, _ := strings.Cut(flag.Tag.Get("json"), ",")
		for i := range fields {
			if fields[i].Name == name {
				fields[i].Doc = flag.Tag.Get("doc")
			}
		}
	}
	return fields
}
