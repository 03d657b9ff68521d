package gather

import (
	"cmp"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tranchehq/tranche/gather/strictyaml"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/order"
)

func readPlan(doc *strictyaml.Document, plan *Plan) error {
	return doc.Root.Fields([]strictyaml.Field{
		{Name: "name", Read: text(&plan.Name)},
		{Name: "priority", Read: number(&plan.Priority)},
		{Name: "max_failed", Read: failures(&plan.MaxFailed)},
		{Name: "guard", Read: guard(&plan.Guard)},
		{Name: "canary", Read: number(&plan.Canary)},
		{Name: "canary_auto", Read: strictyaml.Into(&plan.CanaryAuto)},
		{Name: "order_by", Read: text(&plan.Order.By)},
		{Name: "values", Read: strictyaml.Into(&plan.Order.Values, `min:"1"`)},
		{Name: "partitions", Read: partitions(&plan.Order.Partitions)},
		{Name: "on_failure", Read: canonical(&plan.OnFailure, ParseOnFailure)},
		{Name: "items", Read: readItems(&plan.Items)},
		{Name: "steps", Read: func(v strictyaml.Value) error {
			return v.List(func(v strictyaml.Value) error {
				step, err := readStep(doc, v)
				plan.Steps = append(plan.Steps, step)
				return err
			})
		}},
	}...)
}

func readStep(doc *strictyaml.Document, v strictyaml.Value) (Step, error) {
	step := defaultStep()
	var over workqueue.StepOverrides
	auto := map[string]**bool{"chunk": new(*bool), "in_flight": new(*bool)}
	fields := []strictyaml.Field{
		{Name: "name", Read: text(&step.Name)},
		{Name: "endpoint", Read: text(&step.Endpoint)},
		{Name: "request", Read: text(&step.Request)},
		{Name: "http", Read: readHTTP(&step.HTTP)},
		{Name: "sql", Read: ReadSQL(&step.SQL)},
		{Name: "local", Read: text(&step.Local)},
		{Name: "needs", Read: texts(&step.Needs)},
		{Name: "inputs", Read: inputs(&step.Inputs)},
		{Name: "optional", Read: strictyaml.Into(&step.Optional)},
		{Name: "barrier", Read: readBarrier(&step)},
		{Name: "approve_by", Read: text(&step.Approval)},
	}
	for name, field := range over.Fields() {
		fields = append(fields, strictyaml.Field{Name: name, Read: settingOf(field)})
		if into := auto[name]; into != nil {
			fields = append(fields, strictyaml.Field{Name: name + "_auto", Read: strictyaml.Into(into)})
		}
	}
	err := v.Fields(fields...)
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

// readBarrier reads true, false or approve, which is approve_by: anyone unless that says else, before or after it.
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

// partitions reads a number of which 0, when it stands there, is not the same as not said.
func partitions(into *int) func(strictyaml.Value) error {
	return func(v strictyaml.Value) error {
		err := number(into)(v)
		if err == nil && *into == 0 {
			err = v.Fail("0; it is 1 to %d, or left out", order.MaxPartitions)
		}
		return err
	}
}

// inputs reads a list of which none is not the same as not said.
func inputs(into *[]string) func(strictyaml.Value) error {
	return func(v strictyaml.Value) error {
		*into = []string{}
		return texts(into)(v)
	}
}

// given makes a reader note whether there was a value.
func given[T any](into **T, read func(*T) func(strictyaml.Value) error) func(strictyaml.Value) error {
	return func(v strictyaml.Value) error {
		*into = new(T)
		return read(*into)(v)
	}
}

// together makes one of the two fields of a number that may be auto: itself, which may say auto, and the one with _auto
// behind its name, which makes it the upper bound. Without either it stays nil.
func together(doc *strictyaml.Document, path string, number **workqueue.Adaptive, auto *bool) error {
	is := *number
	switch {
	case auto == nil:
	case is == nil && *auto:
		*number = &workqueue.Adaptive{Auto: true}
	case is == nil || is.Auto && !*auto:
		return doc.Fail(path+"_auto", "without auto, %s has to be a number", path[strings.LastIndexByte(path, '.')+1:])
	default:
		is.Auto = *auto
	}
	return nil
}

// readHTTP reads a step's settings of kind http.
func readHTTP(into **HTTP) func(strictyaml.Value) error {
	return func(v strictyaml.Value) error {
		h := defaultHTTP()
		err := v.Fields([]strictyaml.Field{
			{Name: "url", Read: text(&h.URL)},
			{Name: "method", Read: text(&h.Method)},
			{Name: "headers", Read: pairs(&h.Headers,
				"headers by their names, like Authorization: \"Bearer {secret.NAME}\"")},
			{Name: "body", Read: strictyaml.Into((*json.RawMessage)(&h.Body))},
			{Name: "accept", Read: text(&h.Accept)},
			{Name: "many", Read: strictyaml.Into(&h.Many)},
			{Name: "concurrency", Read: number(&h.Concurrency)},
			{Name: "timeout", Read: duration((*time.Duration)(&h.Timeout))},
			{Name: "max_bytes", Read: size(&h.MaxBytes)},
			{Name: "redirects", Read: number(&h.Redirects)},
			{Name: "response", Read: func(v strictyaml.Value) error {
				return v.Fields([]strictyaml.Field{
					{Name: "items", Read: text(&h.Response.Items)},
					{Name: "key", Read: text(&h.Response.Key)},
					{Name: "value", Read: text(&h.Response.Value)},
				}...)
			}},
		}...)
		if !v.Given("method") {
			h.Method = h.defaultMethod()
		}
		*into = h
		return err
	}
}

// ReadSQL reads the settings of a query: those of a step of kind sql.
func ReadSQL(into **SQL) func(strictyaml.Value) error {
	return func(v strictyaml.Value) error {
		q := defaultSQL()
		*into = q
		return v.Fields([]strictyaml.Field{
			{Name: "source", Read: text(&q.Source)},
			{Name: "query", Read: block(&q.Query)},
			{Name: "key", Read: text(&q.Key)},
			{Name: "value", Read: text(&q.Value)},
			{Name: "content_type", Read: text(&q.ContentType)},
			{Name: "rows", Read: text(&q.Rows)},
			{Name: "timeout", Read: duration((*time.Duration)(&q.Timeout))},
			{Name: "max_rows", Read: number(&q.MaxRows)},
			{Name: "max_bytes", Read: size(&q.MaxBytes)},
		}...)
	}
}

// block reads text, which may be a block of several lines.
func block(into *string) func(strictyaml.Value) error {
	return func(v strictyaml.Value) error {
		if said, ok := v.Block(); ok {
			*into = said
			return nil
		}
		return text(into)(v)
	}
}

// wrong returns an error that says what is wanted, and what the value is.
func wrong(v strictyaml.Value, want error) error { return v.Fail("%v; this is %s", want, v.Kind()) }

var errNoText = errors.New("want text; put it in quotes if it looks like something else")

// text reads text, which may be empty: that is the same as not said.
func text(into *string) func(strictyaml.Value) error {
	return func(v strictyaml.Value) error {
		text, ok := v.Text()
		if !ok {
			return wrong(v, errNoText)
		}
		*into = text
		return nil
	}
}

func texts(into *[]string) func(strictyaml.Value) error {
	return func(v strictyaml.Value) error {
		return v.List(func(v strictyaml.Value) error {
			var s string
			err := text(&s)(v)
			*into = append(*into, s)
			return err
		})
	}
}

// number reads a whole number of any size: what is allowed, Validate knows.
func number(into *int) func(strictyaml.Value) error {
	return func(v strictyaml.Value) error {
		digits, _ := v.Number()
		n, err := workqueue.WholeNumber(digits)
		if err != nil {
			return wrong(v, err)
		}
		*into = n
		return nil
	}
}

// settingOf reads a setting of a step by the type of its field.
func settingOf(field any) func(strictyaml.Value) error {
	switch into := field.(type) {
	case **workqueue.Adaptive:
		return given(into, adaptive)
	case **workqueue.Bytes:
		return given(into, func(n *workqueue.Bytes) func(strictyaml.Value) error { return size((*int)(n)) })
	case **workqueue.Duration:
		return given(into, func(d *workqueue.Duration) func(strictyaml.Value) error { return duration((*time.Duration)(d)) })
	case **float64:
		return given(into, rate)
	case **int:
		return given(into, number)
	case *[]string:
		return texts(into)
	default:
		panic(fmt.Sprintf("gather: no YAML is read as a %T", field))
	}
}

func adaptive(into *workqueue.Adaptive) func(strictyaml.Value) error {
	return func(v strictyaml.Value) error {
		said, ok := v.Number()
		if word, _ := v.Text(); word == "auto" {
			said, ok = word, true
		}
		return parsed(v, said, ok, into)
	}
}

// parsed reads what is said where it is of a kind that may say it.
func parsed(v strictyaml.Value, said string, ok bool, into encoding.TextUnmarshaler) error {
	if !ok {
		said = ""
	}
	if err := into.UnmarshalText([]byte(said)); err != nil {
		return wrong(v, err)
	}
	return nil
}

func rate(into *float64) func(strictyaml.Value) error {
	return func(v strictyaml.Value) (err error) {
		digits, _ := v.Number()
		if *into, err = workqueue.ParseRate(digits); err != nil {
			return wrong(v, err)
		}
		return nil
	}
}

// size reads a number of bytes.
func size(into *int) func(strictyaml.Value) error {
	return func(v strictyaml.Value) error {
		said, ok := v.Plain()
		return parsed(v, said, ok, (*workqueue.Bytes)(into))
	}
}

func failures(into *string) func(strictyaml.Value) error {
	return func(v strictyaml.Value) (err error) {
		said, ok := v.Plain()
		if ok {
			*into, err = workqueue.ParseMaxFailed(said)
		}
		if !ok || err != nil {
			return wrong(v, workqueue.ErrMaxFailed)
		}
		return nil
	}
}

func guard(into *string) func(strictyaml.Value) error {
	return func(v strictyaml.Value) (err error) {
		said, ok := v.Plain()
		if ok {
			*into, err = workqueue.CanonicalGuard(said)
		}
		if !ok || err != nil {
			return wrong(v, workqueue.ErrGuard)
		}
		return nil
	}
}

func duration(into *time.Duration) func(strictyaml.Value) error {
	return func(v strictyaml.Value) error {
		said, ok := v.Text()
		return parsed(v, said, ok, (*workqueue.Duration)(into))
	}
}

// ReadYAML reads what a start may lay over a plan, in the words of its flags.
func (o *Overrides) ReadYAML(v strictyaml.Value) error {
	set := func(v strictyaml.Value, put func(text string) error) error {
		text, ok := v.Plain()
		if !ok {
			return v.Wrong("a value")
		}
		err := put(text)
		if bad, ok := errors.AsType[*FieldError](err); ok {
			return v.Fail("%s", bad.Problem)
		}
		return err
	}
	return v.Entries("settings of runs, like rate: 100", func(name string, v strictyaml.Value) error {
		switch name {
		case "steps":
			return v.Entries("settings by the names of steps", func(step string, v strictyaml.Value) error {
				return v.Entries("settings of the step", func(name string, v strictyaml.Value) error {
					return set(v, func(text string) error { return o.SetStep(step + "." + name + "=" + text) })
				})
			})
		case "retry_codes", "never_retry", "columns", "rename", "types":
			return v.List(func(v strictyaml.Value) error {
				return set(v, func(text string) error { return o.Set(name, text) })
			})
		}
		return set(v, func(text string) error { return o.Set(name, text) })
	})
}
