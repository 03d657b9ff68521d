package plane

import (
	"cmp"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

type settingColumn struct {
	name, kind, zero string // SQL's type and zero value
	null             bool   // 0 is stored as NULL
}

func settingColumns() (all []settingColumn) {
	var view workqueue.SettingsView
	shown := reflect.TypeOf(view)
	for field := range reflect.TypeFor[workqueue.StepSettings]().Fields() {
		of, _ := shown.FieldByName(field.Name)
		name, _, _ := strings.Cut(of.Tag.Get("json"), ",")
		column, null, _ := strings.Cut(field.Tag.Get("column"), ",")
		column = cmp.Or(column, name)
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

// SettingsToRead returns the expressions on run_step, with a prefix like "s.", to be scanned into [SettingTargets].
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

// SettingColumns returns the columns of run_step to write settings to.
func SettingColumns() string {
	var names []string
	for _, c := range settingColumns() {
		names = append(names, c.name)
	}
	return strings.Join(names, ", ")
}

// SettingParameters returns expressions for [SettingColumns] starting with $first, which are [SettingValues].
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

// SettingArrays returns the parameters of [SettingRow] for unnest. Lists are text: there are no arrays of arrays.
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

// SettingElements returns the expressions for [SettingColumns] from an unnest of [SettingArrays], like "u.".
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

// SettingRow returns the parameters of [SettingArrays] for one row.
func SettingRow(s *workqueue.StepSettings) []any {
	values := SettingValues(s)
	for i, value := range values {
		if list, ok := value.([]string); ok {
			values[i] = pg.ArrayText(list)
		}
	}
	return pg.Row(values...)
}

// SettingTargets returns the scan targets of [SettingsToRead].
func SettingTargets(s *workqueue.StepSettings) (targets []any) {
	for _, value := range reflect.ValueOf(s).Elem().Fields() {
		targets = append(targets, value.Addr().Interface())
	}
	return targets
}

// SettingValues returns the parameters of [SettingParameters].
func SettingValues(s *workqueue.StepSettings) (values []any) {
	for _, value := range reflect.ValueOf(s).Elem().Fields() {
		if value.Kind() == reflect.Slice && value.IsNil() {
			value = reflect.MakeSlice(value.Type(), 0, 0) // nil would be NULL
		}
		values = append(values, value.Interface())
	}
	return values
}
