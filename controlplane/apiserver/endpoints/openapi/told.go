package openapi

import (
	_ "embed"
	"encoding/json"
	"strings"
	"sync"
)

//go:embed told.txt
var toldText string

// exceptions are what upstream's comments say of types, which the Go types do
// not, by definition, apart by tabs: =A|B are the fields that must be there, field=A|B the
// values of one, field[]=A|B and field{}=A|B of what a list or map holds, and
// field~JSON is a default, for v3, and ^JSON the unions.
type exceptions map[string][]string

var told = sync.OnceValue(func() exceptions {
	out := exceptions{}
	for line := range strings.Lines(toldText) {
		words := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		out[words[0]] = words[1:]
	}
	return out
})

func (e exceptions) amend(name string, s *Schema, v3 bool) {
	for _, word := range e[name] {
		if unions, ok := strings.CutPrefix(word, "^"); ok {
			s.Unions = json.RawMessage(unions)
			continue
		}
		field, text, enum := strings.Cut(word, "=")
		if !enum {
			field, text, _ = strings.Cut(word, "~")
			if p := s.Properties[field]; p != nil && v3 {
				p.Default = json.RawMessage(text)
			}
			continue
		}
		var values []string
		if text != "" {
			values = strings.Split(text, "|")
		}
		if field == "" {
			s.Required = values
		} else if p := place(s, field); p != nil {
			p.Enum = values
		}
	}
}

// place is a property, or what it holds many of.
func place(s *Schema, field string) *Schema {
	if name, ok := strings.CutSuffix(field, "[]"); ok && s.Properties[name] != nil {
		return s.Properties[name].Items
	}
	if name, ok := strings.CutSuffix(field, "{}"); ok && s.Properties[name] != nil {
		return s.Properties[name].AdditionalProperties
	}
	return s.Properties[field]
}
