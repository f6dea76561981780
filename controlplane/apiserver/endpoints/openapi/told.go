package openapi

import (
	_ "embed"
	"strconv"
	"strings"
	"sync"
)

//go:embed told.txt
var toldText string

//go:embed meanings.txt
var meaningsText string

// exceptions are what upstream's comments say of types, which the Go types do
// not: the values of strings, and fields that must or need not be there.
type exceptions map[string]map[string]string // by definition, then by field, "" being the definition

var told = sync.OnceValue(func() exceptions {
	out := exceptions{}
	for line := range strings.Lines(toldText) {
		words := strings.Fields(line)
		of := map[string]string{}
		for _, w := range words[1:] {
			field, values, _ := strings.Cut(w, "=")
			of[field] = values
		}
		out[words[0]] = of
	}
	return out
})

// meanings are what upstream's comments say of values of strings: by
// definition, field and quoted value.
var meanings = sync.OnceValue(func() map[[3]string]string {
	out := map[[3]string]string{}
	for line := range strings.Lines(meaningsText) {
		words := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 4)
		out[[3]string(words[:3])] = words[3]
	}
	return out
})

// describe says after a description which values there are.
func describe(description, name, field string, values []string) string {
	var b strings.Builder
	b.WriteString(description)
	if description != "" {
		b.WriteString("\n\n")
	}
	b.WriteString("Possible enum values:")
	for _, v := range values {
		v = strconv.Quote(v)
		b.WriteString("\n - `" + v + "`")
		if text := meanings()[[3]string{name, field, v}]; text != "" {
			b.WriteString(" " + text)
		}
	}
	return b.String()
}

func (e exceptions) amend(name string, s *Schema) {
	for field, text := range e[name] {
		var values []string
		if text != "" {
			values = strings.Split(text, "|")
		}
		if field == "" {
			s.Required = values
		} else if p := s.Properties[field]; p != nil {
			p.Enum, p.Description = values, describe(p.Description, name, field, values)
		}
	}
}
