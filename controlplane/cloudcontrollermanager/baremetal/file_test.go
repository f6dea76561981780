package baremetal

import (
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"whole": {`instances:
- {name: a, providerID: "x://1", addresses: [{type: InternalIP, address: 10.0.0.1}, {type: InternalDNS, address: a.test}], instanceType: t, zone: z, region: r, labels: {a.test/b: c}}
- {name: b, exists: false, shutdown: true}`, ""},
		"none":               {"instances: []", ""},
		"empty":              {"", "no instances"},
		"no list":            {"instances:", "no instances"},
		"not YAML":           {"instances: [", "yaml"},
		"misspelt":           {"instances: [{name: a, exist: false}]", `unknown field "exist"`},
		"twice a key":        {"instances: [{name: a, name: b}]", "already set"},
		"twice a name":       {"instances: [{name: a}, {name: a, providerID: x}]", `instances[1].name: Duplicate value: "a"`},
		"twice an ID":        {"instances: [{name: a, providerID: x}, {name: b, providerID: x}]", `instances[1].providerID: Duplicate value: "x"`},
		"no name":            {"instances: [{zone: a}]", `instances[0].name: Invalid value: ""`},
		"no node's name":     {"instances: [{name: A_b}]", `instances[0].name: Invalid value: "A_b"`},
		"no type of address": {"instances: [{name: a, addresses: [{type: IP, address: 10.0.0.1}]}]", `instances[0].addresses[0].type: Unsupported value: "IP"`},
		"no address":         {"instances: [{name: a, addresses: [{type: InternalIP, address: a.test}]}]", `instances[0].addresses[0].address: Invalid value: "a.test"`},
		"no label's value":   {"instances: [{name: a, zone: 'a b'}]", `instances[0].zone: Invalid value: "a b"`},
		"no label":           {"instances: [{name: a, labels: {'a b': c}}]", `instances[0].labels: Invalid value: "a b"`},
	} {
		_, err := parse([]byte(c.text))
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
}

// FuzzParse: no file of machines ends the process, and what is taken is as it should be.
func FuzzParse(f *testing.F) {
	f.Add([]byte("instances:\n- {name: a, zone: b, addresses: [{type: InternalIP, address: 10.0.0.1}]}"))
	f.Add([]byte("instances: [{name: a, labels: {x: y}}, {name: b, exists: false}]"))
	f.Fuzz(func(t *testing.T, text []byte) {
		l, err := parse(text)
		if err != nil {
			return
		}
		names := map[string]bool{}
		for _, in := range l.Instances {
			if in.Name == "" || in.ProviderID == "" || names[in.Name] {
				t.Errorf("%+v", in)
			}
			names[in.Name] = true
		}
	})
}
