package configuration

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// FlagValues are the values of all flags that say what the settings are. Pure.
func FlagValues(s *Settings) (map[string]string, error) {
	b, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	var d Document
	if err := json.Unmarshal(b, &d.values); err != nil {
		return nil, err
	}
	out := map[string]string{}
	for i := range Flags {
		v, _ := d.lookup(Flags[i].Field)
		out[Flags[i].Name] = Flags[i].value(v)
	}
	return out, nil
}

// value is how a flag says what a field is; nil: the zero of its kind. Pure.
func (f *Flag) value(v any) string {
	if v == nil {
		var err error
		if f.Bool {
			return "false"
		}
		if v, err = f.read(""); err != nil {
			v, _ = f.read("0")
		}
	}
	switch v := v.(type) {
	case []any:
		return f.list(v)
	case map[string]any:
		return f.pairs(v)
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64)
	}
	return fmt.Sprint(v)
}

func (f *Flag) list(all []any) string {
	out, bare := make([]string, len(all)), f.Name == "register-with-taints" || f.Name == "reserved-memory"
	for i, one := range all {
		o, ok := one.(map[string]any)
		if !ok {
			out[i] = fmt.Sprint(one)
			continue
		}
		if limits, ok := o["limits"].(map[string]any); ok {
			out[i] = fmt.Sprintf("%v:%s", o["numaNode"], joined(limits, "="))
			continue
		}
		key := fmt.Sprint(o["key"])
		if value, ok := o["value"]; ok {
			key = fmt.Sprintf("%s=%v", key, value)
		}
		out[i] = fmt.Sprintf("%s:%v", key, o["effect"])
	}
	if bare {
		return strings.Join(out, ",")
	}
	return "[" + strings.Join(out, ",") + "]"
}

func (f *Flag) pairs(all map[string]any) string {
	switch f.Name {
	case "eviction-hard", "eviction-soft":
		return joined(all, "<")
	case "manifest-url-header":
		var out []string
		for _, key := range slices.Sorted(maps.Keys(all)) {
			values, _ := all[key].([]any)
			for _, v := range values {
				out = append(out, fmt.Sprintf("%s:%v", key, v))
			}
		}
		return strings.Join(out, ",")
	}
	return joined(all, "=")
}

func joined(all map[string]any, sep string) string {
	var out []string
	for _, key := range slices.Sorted(maps.Keys(all)) {
		out = append(out, fmt.Sprintf("%s%s%v", key, sep, all[key]))
	}
	return strings.Join(out, ",")
}
