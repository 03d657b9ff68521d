package plane

import (
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// settingColumn is where run_step keeps a setting.
type settingColumn struct {
	name, kind, zero string // as SQL has its type and its 0
	null             bool   // 0 is kept as NULL
}

func settingColumns() (all []settingColumn) {
	var view workqueue.SettingsView
	shown := reflect.TypeOf(view)
	for field := range reflect.TypeFor[workqueue.StepSettings]().Fields() {
		of, _ := shown.FieldByName(field.Name)
		name, _, _ := strings.Cut(of.Tag.Get("json"), ",")
		column, null, _ := strings.Cut(field.Tag.Get("column"), ",")
		if column == "" {
			column = name
		}
		c := settingColumn{name: column, null: null == "null"}
		switch reflect.Zero(field.Type).Interface().(type) {
		case int:
			c.kind, c.zero = "integer", "0"
		case bool:
			c.kind = "boolean"
		case float64:
			c.kind, c.zero = "float8", "0::float8"
		case time.Duration:
			c.kind, c.zero = "interval", "interval '0'"
		case []string:
			c.kind = "text[]"
		default:
			panic(fmt.Sprintf("plane: no column of run_step has a %s, which %s is", field.Type, field.Name))
		}
		all = append(all, c)
	}
	return all
}

// SettingsToRead are the expressions on run_step, called by a prefix like "s.", that [SettingTargets] takes.
func SettingsToRead(prefix string) string {
	var list []string
	for _, c := range settingColumns() {
		if c.null {
			list = append(list, fmt.Sprintf("coalesce(%s%s, %s)", prefix, c.name, c.zero))
		} else {
			list = append(list, prefix+c.name)
		}
	}
	return strings.Join(list, ", ")
}

// SettingColumns are the columns of run_step that settings are written to.
func SettingColumns() string {
	var names []string
	for _, c := range settingColumns() {
		names = append(names, c.name)
	}
	return strings.Join(names, ", ")
}

// SettingParameters are the expressions for [SettingColumns], of parameters from $first on, which are [SettingValues].
func SettingParameters(first int) string {
	var list []string
	for i, c := range settingColumns() {
		value := fmt.Sprintf("$%d::%s", first+i, c.kind)
		if c.null {
			value = fmt.Sprintf("nullif(%s, %s)", value, c.zero)
		}
		list = append(list, value)
	}
	return strings.Join(list, ", ")
}

// SettingArrays are the parameters from $first on that [SettingRow] fills, for unnest. PostgreSQL has no arrays of
// arrays: lists are arrays of their text.
func SettingArrays(first int) string {
	var list []string
	for i, c := range settingColumns() {
		if c.kind == "text[]" {
			c.kind = "text"
		}
		list = append(list, fmt.Sprintf("$%d::%s[]", first+i, c.kind))
	}
	return strings.Join(list, ", ")
}

// SettingElements are the expressions for [SettingColumns], of what unnest has made of [SettingArrays], called by a
// prefix like "u." and the names of the columns.
func SettingElements(prefix string) string {
	var list []string
	for _, c := range settingColumns() {
		switch value := prefix + c.name; {
		case c.null:
			list = append(list, fmt.Sprintf("nullif(%s, %s)", value, c.zero))
		case c.kind == "text[]":
			list = append(list, value+"::text[]")
		default:
			list = append(list, value)
		}
	}
	return strings.Join(list, ", ")
}

// SettingRow is the parameters of [SettingArrays], of one row.
func SettingRow(s *workqueue.StepSettings) []any {
	values := SettingValues(s)
	for i, value := range values {
		if list, ok := value.([]string); ok {
			values[i] = pg.ArrayText(list)
		}
	}
	return pg.Row(values...)
}

// SettingTargets are where a row of [SettingsToRead] is scanned to.
func SettingTargets(s *workqueue.StepSettings) (targets []any) {
	for _, value := range reflect.ValueOf(s).Elem().Fields() {
		targets = append(targets, value.Addr().Interface())
	}
	return targets
}

// SettingValues are the parameters of [SettingParameters].
func SettingValues(s *workqueue.StepSettings) (values []any) {
	for _, value := range reflect.ValueOf(s).Elem().Fields() {
		if value.Kind() == reflect.Slice && value.IsNil() {
			value = reflect.MakeSlice(value.Type(), 0, 0) // nil would be NULL
		}
		values = append(values, value.Interface())
	}
	return values
}
