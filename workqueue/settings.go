package workqueue

import (
	"cmp"
	"encoding"
	"errors"
	"fmt"
	"iter"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// StepSettings is a step's settings. A setting has the same field name here, in [StepOverrides] and in [SettingsView],
// whose tags give its name in plans, JSON, queries and commands. The tags here give its bounds and its column of
// run_step: the setting's name by default, and NULL for 0 where marked; and pace, if it changes no outcome. A new
// setting needs a line in each, and a column.
type StepSettings struct {
	Chunk      int           `bounds:"1 8192" pace:""` // most items of a slice
	ChunkAuto  bool          `column:"chunk_auto"`     // nodes find the size, up to Chunk
	ChunkBytes int           `bounds:"1KiB 64MiB" zero:"leaves it to the node" column:",null" pace:""`
	ChunkTime  time.Duration `bounds:"10ms 1h" zero:"" column:",null" pace:""` // of an automatic chunk; 0: node's default
	InFlight   int           `bounds:"1 10000" pace:""`                        // most concurrent slices over all nodes
	// nodes find the limit, up to InFlight
	InFlightAuto bool    `column:"in_flight_auto"`
	Rate         float64 `bounds:"0.001 10000000" unit:" items a second" zero:"is no limit" column:",null" pace:""`
	MaxAttempts  int     `bounds:"1 100"` // most attempts of a failing item
	// from a service's receipt of a request until the request is abandoned
	Timeout      time.Duration `bounds:"1ms 24h" column:"request_timeout"`
	RetryBackoff time.Duration `bounds:"0s 24h"`                 // before the second attempt, doubled for each later one
	MaxBackoff   time.Duration `bounds:"1ms 24h" column:",null"` // the longest such wait; 0: 5 minutes
	RetryCodes   []string      // error codes that are retried even if the service says no
	NoRetryCodes []string      // error codes that are never retried
	MaxResult    int           `bounds:"1 64MiB" zero:"leaves it at 64MiB" column:",null"` // bytes; more fails the item
}

// StepOverrides is changes of a step's settings, for one run or permanently. Nil fields stay unchanged. The tags
// doc, example and placeholder are shown to users; name is the flag, if it differs from the setting.
type StepOverrides struct {
	Chunk        *Adaptive `json:"chunk,omitempty" doc:"items in a request, or auto (500; 50 of http one by one, 100 of local)" placeholder:"N|auto"`
	ChunkBytes   *Bytes    `json:"chunk_bytes,omitempty" doc:"bytes of payloads and parts in a request, at most what NATS takes, or 32MiB without NATS (512KiB; 4MiB of http, sql, local)" placeholder:"SIZE"`
	ChunkTime    *Duration `json:"chunk_time,omitempty" doc:"target time of a request, with chunk auto (5s)" example:"5s" placeholder:"TIME"`
	InFlight     *Adaptive `json:"in_flight,omitempty" doc:"concurrent requests over all nodes, or auto (auto)" placeholder:"N|auto"`
	Rate         *float64  `json:"rate,omitempty" doc:"items a second, over all nodes (no limit)" example:"1000" placeholder:"N"`
	MaxAttempts  *int      `json:"max_attempts,omitempty" doc:"attempts of an item (3)" example:"3" name:"attempts" placeholder:"N"`
	Timeout      *Duration `json:"timeout,omitempty" doc:"for the reply, once a service has the request; give more than the handler takes (12m)" example:"12m" name:"request-timeout" placeholder:"TIME"`
	RetryBackoff *Duration `json:"retry_backoff,omitempty" doc:"wait before the second attempt, doubled for each later one (1s)" example:"1s" name:"backoff" placeholder:"TIME"`
	MaxBackoff   *Duration `json:"max_backoff,omitempty" doc:"longest such wait (5m)" example:"5m" placeholder:"TIME"`
	RetryCodes   []string  `json:"retry_codes,omitempty" nullable:"false" doc:"error codes that are retried even if the service says no; or none (none)" name:"retry-codes" sep:"none" placeholder:"CODE"`
	NoRetryCodes []string  `json:"no_retry_codes,omitempty" nullable:"false" doc:"error codes that are not retried even if the service says yes; or none (none)" sep:"none" placeholder:"CODE"`
	MaxResult    *Bytes    `json:"max_result,omitempty" doc:"bytes of an item's result, else it fails as result_too_large (64MiB)" placeholder:"SIZE"`
}

// SettingsView is StepSettings as JSON, in API responses and the plans of runs.
type SettingsView struct {
	Chunk        int      `json:"chunk" doc:"items in a request at most"`
	ChunkAuto    bool     `json:"chunk_auto,omitempty" doc:"nodes find the size up to chunk"`
	ChunkBytes   Bytes    `json:"chunk_bytes,omitempty" doc:"wanted size of a request; absent: the node's"`
	ChunkTime    Duration `json:"chunk_time,omitempty" doc:"what a request should take, with chunk_auto"`
	InFlight     int      `json:"in_flight" doc:"concurrent requests at most"`
	InFlightAuto bool     `json:"in_flight_auto,omitempty" doc:"nodes find the limit up to in_flight"`
	Rate         float64  `json:"rate,omitempty" doc:"items a second at most; absent: no limit"`
	MaxAttempts  int      `json:"max_attempts" doc:"attempts of an item"`
	Timeout      Duration `json:"timeout" doc:"for the reply to a request that a service has taken"`
	RetryBackoff Duration `json:"retry_backoff" doc:"before the second attempt; doubled for each later one"`
	MaxBackoff   Duration `json:"max_backoff,omitempty" doc:"the longest such wait; absent: 5 minutes"`
	RetryCodes   []string `json:"retry_codes,omitempty" doc:"error codes that are retried"`
	NoRetryCodes []string `json:"no_retry_codes,omitempty" doc:"error codes that never are"`
	MaxResult    Bytes    `json:"max_result,omitempty" doc:"bytes of an item's result at most; absent: 64MiB"`
}

// Defaults of a step. For an automatic chunk or limit, the number is the upper bound.
const (
	DefaultChunkTime = 5 * time.Second // of an automatic chunk
	// A step's `timeout`.
	DefaultTimeout = 12 * time.Minute
	// `max_backoff`.
	DefaultMaxBackoff = 5 * time.Minute
)

// NoCodes alone in a list of codes means no codes.
const NoCodes = "none"

// View returns the settings as JSON shows them.
func (s *StepSettings) View() (v SettingsView) {
	to := reflect.ValueOf(&v).Elem()
	for field, value := range reflect.ValueOf(s).Elem().Fields() {
		into := to.FieldByName(field.Name)
		into.Set(value.Convert(into.Type()))
	}
	return v
}

// Settings is the inverse of [StepSettings.View].
func (v *SettingsView) Settings() (s StepSettings) {
	to := reflect.ValueOf(&s).Elem()
	for field, value := range reflect.ValueOf(v).Elem().Fields() {
		into := to.FieldByName(field.Name)
		into.Set(value.Convert(into.Type()))
	}
	return s
}

// All yields each setting by its name in plans, in human-readable form; automatic ones show their upper bound.
func (s *StepSettings) All() iter.Seq2[string, any] {
	return func(yield func(string, any) bool) {
		v := s.View()
		of := reflect.ValueOf(&v).Elem()
		for field, value := range reflect.ValueOf(&v).Elem().Fields() {
			if strings.HasSuffix(field.Name, "Auto") {
				continue
			}
			shown := value.Interface()
			switch is := shown.(type) {
			case Duration:
				shown = is.String()
			case Bytes:
				shown = int(is)
			case []string:
				shown = strings.Join(is, CodeComma)
			case int:
				if auto := of.FieldByName(field.Name + "Auto"); auto.IsValid() && auto.Bool() {
					shown = fmt.Sprintf("auto, at most %d", is)
				} else if auto.IsValid() {
					shown = fmt.Sprint(is)
				}
			}
			if !yield(jsonName(field), shown) {
				return
			}
		}
	}
}

// Paces returns the names of the settings of pace, which change no outcome.
func (StepSettings) Paces() (names []string) {
	shown := reflect.TypeFor[SettingsView]()
	for field := range reflect.TypeFor[StepSettings]().Fields() {
		if _, pace := field.Tag.Lookup("pace"); pace {
			of, _ := shown.FieldByName(field.Name)
			names = append(names, jsonName(of))
		}
	}
	return names
}

func jsonName(field reflect.StructField) string {
	name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
	return name
}

// Fields yields the name of each setting in plans, and a pointer to its field.
func (o *StepOverrides) Fields() iter.Seq2[string, any] {
	return func(yield func(string, any) bool) {
		for field, value := range reflect.ValueOf(o).Elem().Fields() {
			if !yield(jsonName(field), value.Addr().Interface()) {
				return
			}
		}
	}
}

// Flags yields the flag of each setting, with its --, by its name in plans.
func Flags() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for field := range reflect.TypeFor[StepOverrides]().Fields() {
			name := jsonName(field)
			flag := cmp.Or(field.Tag.Get("name"), strings.ReplaceAll(name, "_", "-"))
			if !yield(name, "--"+flag) {
				return
			}
		}
	}
}

// Empty reports whether no setting is changed.
func (o *StepOverrides) Empty() bool { return reflect.ValueOf(o).Elem().IsZero() }

// Over returns the settings with the overrides applied.
func (s StepSettings) Over(o *StepOverrides) StepSettings {
	to := reflect.ValueOf(&s).Elem()
	for field, value := range reflect.ValueOf(o).Elem().Fields() {
		into := to.FieldByName(field.Name)
		switch given := value.Interface().(type) {
		case *Adaptive: // below
		case []string:
			if given != nil {
				into.Set(reflect.ValueOf(codesGiven(given)))
			}
		default:
			if !value.IsNil() {
				into.Set(value.Elem().Convert(into.Type()))
			}
		}
	}
	if o.Chunk != nil {
		s.SetChunk(*o.Chunk)
	}
	if o.Chunk != nil && o.ChunkTime != nil {
		s.ChunkTime = time.Duration(*o.ChunkTime)
	}
	if o.InFlight != nil {
		s.SetInFlight(*o.InFlight)
	}
	if o.RetryBackoff != nil && o.MaxBackoff == nil && s.MaxBackoff > 0 {
		s.MaxBackoff = max(s.MaxBackoff, s.RetryBackoff)
	}
	return s
}

func codesGiven(codes []string) []string {
	if len(codes) == 1 && codes[0] == NoCodes {
		return []string{}
	}
	return slices.Clone(codes)
}

// SetChunk sets a fixed chunk size, or an automatic one with a target time.
func (s *StepSettings) SetChunk(n Adaptive) {
	s.Chunk, s.ChunkAuto = n.Value, n.Auto
	if !n.Auto {
		s.ChunkTime = 0
		return
	}
	s.Chunk = cmp.Or(s.Chunk, AutoChunk)
	s.ChunkTime = cmp.Or(s.ChunkTime, min(DefaultChunkTime, cmp.Or(s.Timeout, DefaultTimeout)))
}

// SetInFlight sets a fixed or automatic limit of requests.
func (s *StepSettings) SetInFlight(n Adaptive) {
	s.InFlight, s.InFlightAuto = n.Value, n.Auto
	if n.Auto {
		s.InFlight = cmp.Or(s.InFlight, AutoInFlight)
	}
}

// Clone returns a deep copy.
func (s StepSettings) Clone() StepSettings {
	s.RetryCodes, s.NoRetryCodes = slices.Clone(s.RetryCodes), slices.Clone(s.NoRetryCodes)
	return s
}

// Check returns the name of a setting out of bounds and its problem. It checks each setting separately.
func (s *StepSettings) Check() (name, problem string) {
	v := s.View()
	of := reflect.ValueOf(&v).Elem()
	for field, value := range reflect.ValueOf(s).Elem().Fields() {
		shown, _ := of.Type().FieldByName(field.Name)
		if problem := outOf(field.Tag, value.Convert(shown.Type)); problem != "" {
			return jsonName(shown), problem
		}
	}
	return "", ""
}

// Check returns the name of a setting out of bounds and its problem.
func (o *StepOverrides) Check() (name, problem string) {
	of := reflect.TypeFor[StepSettings]()
	for field, value := range reflect.ValueOf(o).Elem().Fields() {
		if value.Kind() != reflect.Pointer || value.IsNil() {
			continue
		}
		given := value.Elem()
		if n, sizing := reflect.TypeAssert[Adaptive](given); sizing {
			if n.Auto {
				continue
			}
			given = reflect.ValueOf(n.Value)
		}
		bounds, _ := of.FieldByName(field.Name)
		if problem := outOf(bounds.Tag, given); problem != "" {
			return jsonName(field), problem
		}
	}
	return "", ""
}

// outOf describes a value's violation of the bounds in a tag, or is empty.
func outOf(tag reflect.StructTag, value reflect.Value) string {
	least, most, bounded := strings.Cut(tag.Get("bounds"), " ")
	zero, none := tag.Lookup("zero")
	if !bounded || none && value.IsZero() {
		return ""
	}
	n := asFloat(value)
	if n >= bound(value.Type(), least) && n <= bound(value.Type(), most) { // neither holds for NaN
		return ""
	}
	problem := fmt.Sprintf("%v is not within %s to %s%s", value.Interface(), least, most, tag.Get("unit"))
	if zero != "" {
		problem += "; 0 " + zero
	}
	return problem
}

func asFloat(value reflect.Value) float64 {
	return value.Convert(reflect.TypeFor[float64]()).Float()
}

func bound(of reflect.Type, text string) float64 {
	value := reflect.New(of)
	if reader, ok := reflect.TypeAssert[encoding.TextUnmarshaler](value); ok {
		if err := reader.UnmarshalText([]byte(text)); err != nil {
			return math.NaN()
		}
		return asFloat(value.Elem())
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return math.NaN()
	}
	return n
}

// ErrDoneBy says when a run may be to have ended.
var ErrDoneBy = errors.New("want a time of day and the zone of its clock like 06:00 Europe/Berlin, a time like " +
	"2026-01-31T06:00:00Z, or none")

const timeOfDay = "15:04"

// ParseDoneBy reads when a run is to have ended, and returns the one form in which plans keep it; "" for none.
func ParseDoneBy(text string) (string, error) {
	if text == "" || text == "none" {
		return "", nil
	}
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		return at.UTC().Format(time.RFC3339), nil
	}
	_, err := DoneBy(text, time.Time{})
	return text, err
}

// DoneBy is the time that a text of ParseDoneBy means: of one of day the first after from.
func DoneBy(text string, from time.Time) (time.Time, error) {
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		return at, nil
	}
	clock, name, _ := strings.Cut(text, " ")
	zone, err := time.LoadLocation(name)
	switch {
	case name == "" || strings.EqualFold(name, "local"):
		return time.Time{}, ErrDoneBy
	case err != nil:
		return time.Time{}, fmt.Errorf("no time zone %.60q; use an IANA name such as Europe/Berlin or UTC", name)
	}
	return NextTimeOfDay(clock, zone, from)
}

// CheckDoneBy refuses a time that has passed by the database's clock; nil and zero are none.
func CheckDoneBy(at *time.Time, now time.Time) error {
	if at == nil || at.IsZero() || at.After(now) {
		return nil
	}
	return &SettingError{"done_by: " + at.UTC().Format(time.RFC3339) + " has passed; give a later time, or none"}
}

// NextTimeOfDay is when a clock shows 06:00 next after from. What it shows twice counts when it shows it first; instead
// of what it skips, the next moment counts.
func NextTimeOfDay(clock string, zone *time.Location, from time.Time) (at time.Time, err error) {
	of, err := time.Parse(timeOfDay, clock)
	if err != nil || of.Format(timeOfDay) != clock {
		return at, ErrDoneBy
	}
	day := from.In(zone)
	for days := 0; !at.After(from); days++ {
		at = shown(time.Date(day.Year(), day.Month(), day.Day()+days, of.Hour(), of.Minute(), 0, 0, time.UTC), zone)
	}
	return at, nil
}

// shown is when the clock of a zone first shows the fields of a time in UTC, or later ones.
func shown(wall time.Time, zone *time.Location) time.Time {
	before := wall.Add(-24 * time.Hour).In(zone)
	_, change := before.ZoneBounds()
	by := func(t time.Time) time.Time {
		_, offset := t.Zone()
		return wall.Add(-time.Duration(offset) * time.Second).In(zone)
	}
	at := by(before)
	if change.IsZero() || at.Before(change) {
		return at
	}
	if at = by(change); at.Before(change) {
		return change
	}
	return at
}

const maxFailures = 1<<31 - 1

// ErrMaxFailed says which thresholds are valid.
var ErrMaxFailed = errors.New("want a number of items like 500, a percentage of them like 1% or 0.5% up to 100%, " +
	"or none")

// ParseMaxFailed parses a threshold of failed items: a number, a percentage from 0% to 100% with up to four
// decimals, or none. It returns the canonical form: "500", "0.5%", or "" for none.
func ParseMaxFailed(text string) (string, error) {
	if text == "" || text == "none" {
		return "", nil
	}
	share, percent := strings.CutSuffix(text, "%")
	if !percent {
		if n, err := WholeNumber(text); err != nil || n < 0 || n > maxFailures {
			return "", ErrMaxFailed
		}
		return text, nil
	}
	share, ok := canonicalShare(share)
	if !ok {
		return "", ErrMaxFailed
	}
	return share + "%", nil
}

func canonicalShare(share string) (canonical string, ok bool) {
	whole, decimals, dot := strings.Cut(share, ".")
	n, err := WholeNumber(whole)
	if err != nil || n < 0 || n > 100 || dot != (decimals != "") || len(decimals) > 4 ||
		strings.Trim(decimals, "0123456789") != "" {
		return "", false
	}
	decimals = strings.TrimRight(decimals, "0")
	if decimals == "" {
		return strconv.Itoa(n), true
	}
	return strconv.Itoa(n) + "." + decimals, n < 100
}

const percentUnit = 10_000

// FailedLimit converts a threshold for [ParseMaxFailed] to items, rounded down; nil: no limit.
func FailedLimit(maxFailed string, items int64) (*int64, error) {
	text, err := ParseMaxFailed(maxFailed)
	if err != nil {
		return nil, &SettingError{fmt.Sprintf("max failed is %.40q; %v", maxFailed, err)}
	}
	if text == "" {
		return nil, nil
	}
	share, part := strings.CutSuffix(text, "%")
	if !part {
		n, err := strconv.ParseInt(text, 10, 64)
		return &n, err
	}
	whole, decimals, _ := strings.Cut(share, ".")
	units, err := strconv.ParseInt(whole+decimals+strings.Repeat("0", 4-len(decimals)), 10, 64)
	return new(items * units / (100 * percentUnit)), err
}
