package openapi

import (
	_ "embed"
	"encoding/json"
	"strconv"
	"strings"
	"sync"
)

//go:embed overrides.txt
var overridesText string

//go:embed enum_descriptions.txt
var enumDescriptionsText string

// exceptions are what upstream's comments say of types, which the Go types do
// not, by definition, apart by tabs: =A|B are the fields that must be there, field=A|B the
// values of one, field[]=A|B and field{}=A|B of what a list or map holds,
// field~JSON is a default, for v3, and ^JSON the unions; field@ is how a list or a
// map is merged, field+ says that the description ends its line, and field"TEXT" is
// the description where types have another, or none.
type exceptions map[string][]string

var overrides = sync.OnceValue(func() exceptions {
	out := exceptions{}
	for line := range strings.Lines(overridesText) {
		words := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		out[words[0]] = words[1:]
	}
	return out
})

// enumDescriptions are what upstream's comments say of values of strings: by
// definition, field and quoted value.
var enumDescriptions = sync.OnceValue(func() map[[3]string]string {
	out := map[[3]string]string{}
	for line := range strings.Lines(enumDescriptionsText) {
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
		if text := enumDescriptions()[[3]string{name, field, v}]; text != "" {
			b.WriteString(" " + text)
		}
	}
	return b.String()
}

func (e exceptions) amend(name string, s *Schema, v3 bool) {
	for _, word := range e[name] {
		field, mark, text := partsOf(word)
		p := s
		if field != "" {
			if p = place(s, field); p == nil {
				continue
			}
		}
		switch mark {
		case '^':
			p.Unions = json.RawMessage(text)
		case '~':
			if v3 {
				p.Default = json.RawMessage(text)
			}
		case '@':
			if text == "granular" {
				p.MapType = text
			} else {
				p.ListType = text
			}
		case '+':
			p.Description += "\n"
		case '"':
			if p.Ref != "" && v3 { // a reference may have no neighbours
				*p = Schema{AllOf: []*Schema{{Ref: p.Ref}}, Default: p.Default}
			}
			p.Description, _ = strconv.Unquote(`"` + text)
		case '=':
			var values []string
			if text != "" {
				values = strings.Split(text, "|")
			}
			if field == "" {
				p.Required = values
				continue
			}
			p.Enum = values
			if _, whole := s.Properties[field]; whole {
				p.Description = describe(p.Description, name, field, values)
			}
		}
	}
}

// partsOf are a word's field, its mark and what comes after.
func partsOf(word string) (field string, mark byte, text string) {
	i := strings.IndexAny(word, `=~@+^"`)
	return word[:i], word[i], word[i+1:]
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
