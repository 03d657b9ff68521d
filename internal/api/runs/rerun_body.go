package runs

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/internal/api/kernel"
	"github.com/tranchehq/tranche/internal/intake"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/redo"
)

// Bounds of a selection of items.
const (
	maxRerunBody  = 16 << 20
	maxRerunKeys  = 100_000
	maxRerunCodes = 1000
	maxStepName   = 64
)

// bodyReader reads a selection of items token by token: what it costs is bounded by the limits, whatever is sent.
type bodyReader struct {
	dec     *jsontext.Decoder
	again   string // what is to be done in several requests when it is too much for one
	example string // of a body
}

// readBody reads a body, member by member, of those that there are.
func (r *bodyReader) readBody(body io.Reader, there ...[]member) error {
	members := slices.Concat(there...)
	limited := &io.LimitedReader{R: body, N: maxRerunBody + 1}
	r.dec = jsontext.NewDecoder(limited)
	err := r.object(func(name string) error {
		at := slices.IndexFunc(members, func(m member) bool { return m.name == name })
		if at < 0 {
			return unknownMember(name, members)
		}
		return members[at].read(name)
	})
	if limited.N <= 0 {
		err = kernel.TooLarge(fmt.Sprintf("the body is larger than %d MiB; %s in several requests", maxRerunBody>>20,
			r.again))
	}
	return err
}

func unknownMember(name string, members []member) error {
	names := make([]string, len(members))
	for i, m := range members {
		names[i] = m.name
	}
	last := len(names) - 1
	return kernel.BadInput(fmt.Sprintf("the body has an unknown member %q; there are %s and %s",
		kernel.Cut(name, kernel.MaxEchoed), strings.Join(names[:last], ", "), names[last]))
}

// OrdinalRanges is ranges of ordinals, both ends included.
type OrdinalRanges [][2]int

// Schema tells huma what they look like.
func (OrdinalRanges) Schema(huma.Registry) *huma.Schema {
	most, two, zero := redo.MaxRanges, 2, 0.0
	return &huma.Schema{Type: huma.TypeArray, MaxItems: &most, Examples: []any{[][2]int{{0, 99}}},
		Description: "items by ordinal, both ends included; beside failed, codes or groups: only those of them",
		Items: &huma.Schema{Type: huma.TypeArray, MinItems: &two, MaxItems: &two,
			Items: &huma.Schema{Type: huma.TypeInteger, Minimum: &zero}}}
}

// ranges is the same as the store takes it.
func (o OrdinalRanges) ranges() (all []redo.Range) {
	for _, r := range o {
		all = append(all, redo.Range{From: workqueue.Ordinal(r[0]), To: workqueue.Ordinal(r[1])})
	}
	return all
}

// member is one of a body, and what reads its value.
type member struct {
	name string
	read func(name string) error
}

// into reads a value to where it belongs.
func into[T any](to *T, read func(name string) (T, error)) func(name string) error {
	return func(name string) (err error) {
		*to, err = read(name)
		return err
	}
}

// readRerun reads the body of a re-run.
func readRerun(body io.Reader) (set RerunSettings, err error) {
	r := &bodyReader{again: "run the items again", example: `{"failed":true}`}
	err = r.readBody(body, []member{{"failed", into(&set.Failed, r.boolean)},
		{"failed_at", into(&set.FailedAt, r.text(maxStepName))}},
		r.chosen(&set.Keys, &set.Codes, &set.Groups, &set.Ranges), r.evidence(&set.Evidence), []member{
			{"step", into(&set.Step, r.text(maxStepName))},
			{"chunk", into(&set.Chunk, r.sizing(bitfield.Size))},
			{"in_flight", into(&set.InFlight, r.sizing(workqueue.MaxInFlight))},
			{"endpoint", into(&set.Endpoint, r.text(maxStepName))},
			{"canary", into(&set.Canary, r.number(math.MaxInt32))},
			{"canary_auto", into(&set.CanaryAuto, r.boolean)},
			{"dry_run", into(&set.DryRun, r.boolean)},
			{"reason", into(&set.Reason, r.text(kernel.MaxReasonBytes))},
		})
	return set, err
}

// chosen are the members by which items are chosen one by one.
func (r *bodyReader) chosen(keys, codes, groups *[]string, ranges *OrdinalRanges) []member {
	return []member{
		{"keys", into(keys, func(name string) ([]string, error) {
			return r.texts(name, maxRerunKeys, intake.MaxKeyBytes)
		})},
		{"codes", into(codes, r.codes)}, {"groups", into(groups, r.codes)}, {"ranges", into(ranges, r.ranges)},
	}
}

func (r *bodyReader) object(member func(name string) error) error {
	if kind := r.dec.PeekKind(); kind != '{' && kind != 0 {
		return kernel.BadInput("the body must be a JSON object, like " + r.example)
	}
	if _, err := r.dec.ReadToken(); err != nil {
		return r.broken(err)
	}
	for r.dec.PeekKind() == '"' {
		name, err := r.dec.ReadToken()
		if err != nil {
			return r.broken(err)
		}
		if err := member(name.String()); err != nil {
			return err
		}
	}
	if _, err := r.dec.ReadToken(); err != nil {
		return r.broken(err)
	}
	if _, err := r.dec.ReadToken(); !errors.Is(err, io.EOF) { // the end has to be read: see timedBody
		return kernel.BadInput("more text after the JSON object of the body; send one object")
	}
	return nil
}

func (r *bodyReader) boolean(field string) (bool, error) {
	switch r.dec.PeekKind() {
	case 't', 'f':
		token, err := r.dec.ReadToken()
		return err == nil && token.Bool(), r.broken(err)
	default:
		return false, r.wrong(field, "true or false")
	}
}

// sizing reads a number, or the text auto.
func (r *bodyReader) sizing(most int) func(field string) (Sizing, error) {
	return func(field string) (size Sizing, err error) {
		if r.dec.PeekKind() != '"' {
			size.Value, err = r.number(most)(field)
			return size, err
		}
		text, err := r.text(maxStepName)(field)
		if err == nil && text != "auto" {
			err = r.wrong(field, "a number or auto")
		}
		size.Auto = true
		return size, err
	}
}

func (r *bodyReader) text(bytes int) func(field string) (string, error) {
	return func(field string) (string, error) {
		if r.dec.PeekKind() != '"' {
			return "", r.wrong(field, "a string")
		}
		token, err := r.dec.ReadToken()
		if err != nil {
			return "", r.broken(err)
		}
		text := token.String()
		return text, kernel.CheckText(field, text, bytes)
	}
}

func (r *bodyReader) number(most int) func(field string) (int, error) {
	return func(field string) (int, error) {
		if r.dec.PeekKind() != '0' {
			return 0, r.wrong(field, "a number")
		}
		token, err := r.dec.ReadToken()
		if err != nil {
			return 0, r.broken(err)
		}
		text := token.String()
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 || n > most {
			return 0, kernel.BadInput(fmt.Sprintf("%s is %s; it must be a whole number from 0, which keeps it as it is, to %d",
				field, kernel.Cut(text, kernel.MaxEchoed), most))
		}
		return n, nil
	}
}

func (r *bodyReader) texts(field string, most, bytes int) ([]string, error) {
	if r.dec.PeekKind() != '[' {
		return nil, r.wrong(field, "an array of strings")
	}
	if _, err := r.dec.ReadToken(); err != nil {
		return nil, r.broken(err)
	}
	var all []string
	for r.dec.PeekKind() == '"' {
		token, err := r.dec.ReadToken()
		if err != nil {
			return nil, r.broken(err)
		}
		if len(all) == most {
			return nil, kernel.BadInput(fmt.Sprintf("there are more than %d %s; %s in several requests", most, field, r.again))
		}
		text := token.String()
		if err := kernel.CheckText(fmt.Sprintf("%s[%d]", field, len(all)), text, bytes); err != nil {
			return nil, err
		}
		all = append(all, text)
	}
	if r.dec.PeekKind() != ']' && r.dec.PeekKind() != 0 {
		return nil, r.wrong(fmt.Sprintf("%s[%d]", field, len(all)), "a string")
	}
	_, err := r.dec.ReadToken()
	return all, r.broken(err)
}

// ranges reads pairs of ordinals, both included.
func (r *bodyReader) ranges(field string) (OrdinalRanges, error) {
	const pair = "a pair of ordinals, like [0,99]"
	var all OrdinalRanges
	err := r.array(field, "an array of pairs of ordinals, like [[0,99],[500,500]]", func(i int) error {
		if i == redo.MaxRanges {
			return kernel.BadInput(fmt.Sprintf("there are more than %d %s; %s in several requests", i, field, r.again))
		}
		at := fmt.Sprintf("%s[%d]", field, i)
		var ends []int
		err := r.array(at, pair, func(i int) error {
			n, err := r.ordinal(at)
			if err == nil && i > 1 {
				err = kernel.BadInput(at + " must be " + pair)
			}
			ends = append(ends, n)
			return err
		})
		if err == nil && len(ends) != 2 {
			err = kernel.BadInput(at + " must be " + pair)
		}
		if err == nil {
			all = append(all, [2]int{ends[0], ends[1]})
		}
		return err
	})
	return all, err
}

// array reads an array, of whose elements each is read by element.
func (r *bodyReader) array(field, wanted string, element func(i int) error) error {
	if r.dec.PeekKind() != '[' {
		return r.wrong(field, wanted)
	}
	if _, err := r.dec.ReadToken(); err != nil {
		return r.broken(err)
	}
	for i := 0; r.dec.PeekKind() != ']' && r.dec.PeekKind() != 0; i++ {
		if err := element(i); err != nil {
			return err
		}
	}
	_, err := r.dec.ReadToken()
	return r.broken(err)
}

func (r *bodyReader) ordinal(field string) (int, error) {
	if r.dec.PeekKind() != '0' {
		return 0, r.wrong(field, "a pair of ordinals, which are whole numbers from 0")
	}
	token, err := r.dec.ReadToken()
	if err != nil {
		return 0, r.broken(err)
	}
	n, err := strconv.ParseInt(token.String(), 10, 32)
	if err != nil || n < 0 {
		return 0, kernel.BadInput(fmt.Sprintf("%s holds %s, which is no ordinal: those are whole numbers from 0", field,
			kernel.Cut(token.String(), kernel.MaxEchoed)))
	}
	return int(n), nil
}

// codes reads codes of errors, or ids of their groups: none of them is empty.
func (r *bodyReader) codes(field string) ([]string, error) {
	all, err := r.texts(field, maxRerunCodes, kernel.MaxCodeBytes)
	if at := slices.Index(all, ""); err == nil && at >= 0 {
		err = kernel.BadInput(fmt.Sprintf("%s[%d] is empty; tranche run errors lists the codes and groups that there are",
			field,
			at))
	}
	return all, err
}

// wrong is for a value of another kind; one that is no JSON at all is broken.
func (r *bodyReader) wrong(field, wanted string) error {
	if r.dec.PeekKind() == 0 {
		_, err := r.dec.ReadToken()
		return r.broken(err)
	}
	return kernel.BadInput(field + " must be " + wanted)
}

// broken turns an error of the decoder into one about the body.
func (r *bodyReader) broken(err error) error {
	how, slow := kernel.CameTooSlowly(err)
	var syntax *jsontext.SyntacticError
	switch {
	case err == nil:
		return nil
	case slow:
		return kernel.BadInput("the body: " + how + "; nothing was changed, send it again")
	case errors.As(err, &syntax):
		return kernel.BadInput(fmt.Sprintf("the body is not valid JSON at byte %d: %v", syntax.ByteOffset+1, syntax.Err))
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return kernel.BadInput("the body breaks off before its end; it must be a JSON object, like " + r.example)
	default:
		return fmt.Errorf("read the body: %w", err)
	}
}
