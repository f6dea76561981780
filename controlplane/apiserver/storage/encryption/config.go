package encryption

import (
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	apiserverv1 "k8s.io/apiserver/pkg/apis/apiserver/v1"
	"sigs.k8s.io/yaml"
)

// Keys are what a configuration file says of each resource.
type Keys struct {
	file  string
	table atomic.Pointer[map[schema.GroupResource]*chain]
}

// Load reads an EncryptionConfiguration.
func Load(file string) (*Keys, error) {
	k := &Keys{file: file}
	return k, k.load()
}

func (k *Keys) load() error {
	data, err := os.ReadFile(k.file)
	if err != nil {
		return err
	}
	t, err := parse(data)
	if err != nil {
		return fmt.Errorf("read %s: %w", k.file, err)
	}
	k.table.Store(&t)
	return nil
}

// plainly is for resources that the file does not name.
var plainly = &chain{links: []link{{"", identity{}}}, unknown: errors.New("identity transformer tried to read encrypted data")}

// chain is the most particular entry for a resource.
func (k *Keys) chain(gr schema.GroupResource) *chain {
	t := *k.table.Load()
	for _, name := range []schema.GroupResource{gr, {Group: gr.Group, Resource: "*"}, {Group: "*", Resource: "*"}} {
		if c := t[name]; c != nil {
			return c
		}
	}
	return plainly
}

func parse(data []byte) (map[schema.GroupResource]*chain, error) {
	var c apiserverv1.EncryptionConfiguration
	if err := yaml.UnmarshalStrict(data, &c); err != nil {
		return nil, err
	}
	if want := apiserverv1.SchemeGroupVersion.String(); c.Kind != "EncryptionConfiguration" || c.APIVersion != want {
		return nil, fmt.Errorf("kind %q of %q is not EncryptionConfiguration of %s", c.Kind, c.APIVersion, want)
	}
	root := field.NewPath("resources")
	var errs field.ErrorList
	if len(c.Resources) == 0 {
		errs = append(errs, atLeastOne(root, root))
	}
	table := map[schema.GroupResource]*chain{}
	for i, entry := range c.Resources {
		at := root.Index(i)
		more, wrong := links(entry.Providers, at.Child("providers"))
		errs = append(errs, wrong...)
		errs = append(errs, validateResources(entry.Resources, at.Child("resources"))...)
		for _, name := range entry.Resources {
			gr := schema.ParseGroupResource(name)
			for _, wide := range []schema.GroupResource{{Group: gr.Group, Resource: "*"}, {Group: "*", Resource: "*"}} {
				if table[wide] != nil {
					return nil, fmt.Errorf("resource %q is masked by earlier rule %q", written(gr), written(wide))
				}
			}
			have := table[gr]
			if have == nil {
				have = &chain{unknown: errors.New("no matching prefix found")}
			}
			have.links = append(have.links, more...)
			table[gr] = have
		}
	}
	return table, errs.ToAggregate()
}

// written is how the file writes a resource.
func written(gr schema.GroupResource) string {
	if gr.Group == "" && gr.Resource == "*" {
		return "*."
	}
	return gr.String()
}

func atLeastOne(at *field.Path, what any) *field.Error {
	return field.Required(at, fmt.Sprintf("at least one %s is required", what))
}

// A maker is one kind of provider with keys of its own.
type maker struct {
	field, prefix, missing string
	sizes                  []int
	make                   func(key []byte) (provider, error)
}

var (
	noAES  = "no matching key was found for the provided AES transformer"
	makers = map[string]maker{
		"aescbc":    {"aescbc", "k8s:enc:aescbc:v1:", noAES, []int{16, 24, 32}, newCBC},
		"aesgcm":    {"aesgcm", "k8s:enc:aesgcm:v1:", noAES, []int{16, 24, 32}, newGCM},
		"secretbox": {"secretbox", "k8s:enc:secretbox:v1:", "no matching key was found for the provided Secretbox transformer", []int{32}, newBox},
	}
)

// links are an entry's providers in their order.
func links(providers []apiserverv1.ProviderConfiguration, at *field.Path) (out []link, errs field.ErrorList) {
	if len(providers) == 0 {
		return nil, field.ErrorList{atLeastOne(at, at)}
	}
	for i, p := range providers {
		at := at.Index(i)
		var given []string
		keys := map[string][]apiserverv1.Key{}
		if p.AESCBC != nil {
			given, keys["aescbc"] = append(given, "aescbc"), p.AESCBC.Keys
		}
		if p.AESGCM != nil {
			given, keys["aesgcm"] = append(given, "aesgcm"), p.AESGCM.Keys
		}
		if p.Secretbox != nil {
			given, keys["secretbox"] = append(given, "secretbox"), p.Secretbox.Keys
		}
		if p.Identity != nil {
			given = append(given, "identity")
		}
		if p.KMS != nil {
			given = append(given, "kms")
		}
		switch {
		case len(given) == 0:
			errs = append(errs, field.Invalid(at, "", "provider does not contain any of the expected providers: KMS, AESGCM, AESCBC, Secretbox, Identity"))
		case len(given) > 1:
			errs = append(errs, field.Invalid(at, strings.Join(given, ", "), "more than one provider specified in a single element, should split into different list elements"))
		case given[0] == "kms":
			errs = append(errs, field.Forbidden(at.Child("kms"), "is not built; use secretbox or aesgcm"))
		case given[0] == "identity":
			out = append(out, link{"", identity{}})
		default:
			m := makers[given[0]]
			c, wrong := m.chain(keys[given[0]], at.Child(m.field, "keys"))
			errs = append(errs, wrong...)
			out = append(out, link{m.prefix, c})
		}
	}
	return out, errs
}

func (m maker) chain(keys []apiserverv1.Key, at *field.Path) (*chain, field.ErrorList) {
	if len(keys) == 0 {
		return nil, field.ErrorList{atLeastOne(at, "keys")}
	}
	c := &chain{unknown: errors.New(m.missing)}
	var errs field.ErrorList
	for i, k := range keys {
		at := at.Index(i)
		if k.Name == "" {
			errs = append(errs, field.Required(at.Child("name"), "name is a mandatory field for a key"))
		}
		secret, err := base64.StdEncoding.DecodeString(k.Secret)
		switch at := at.Child("secret"); {
		case k.Secret == "":
			errs = append(errs, field.Required(at, "secret is a mandatory field for a key"))
		case err != nil:
			errs = append(errs, field.Invalid(at, "REDACTED", "secrets must be base64 encoded"))
		case !slices.Contains(m.sizes, len(secret)):
			errs = append(errs, field.Invalid(at, "REDACTED", fmt.Sprintf("secret is not of the expected length, got %d, expected one of %v", len(secret), m.sizes)))
		default:
			p, err := m.make(secret)
			if err != nil {
				errs = append(errs, field.InternalError(at, err))
			}
			c.links = append(c.links, link{k.Name + ":", p})
		}
	}
	return c, errs
}
