package openapi

import (
	_ "embed"
	"strings"
	"sync"
)

//go:embed told.txt
var toldText string

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

func (e exceptions) amend(name string, s *Schema) {
	for field, text := range e[name] {
		var values []string
		if text != "" {
			values = strings.Split(text, "|")
		}
		if field == "" {
			s.Required = values
		} else if p := s.Properties[field]; p != nil {
			p.Enum = values
		}
	}
}
