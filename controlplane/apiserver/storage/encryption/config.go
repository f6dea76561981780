package encryption

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	apiserverv1 "k8s.io/apiserver/pkg/apis/apiserver/v1"
	"sigs.k8s.io/yaml"

	"knarr/internal/run"
)

// Keys are what a configuration file says of each resource. The plugins it
// names are reached until Close.
type Keys struct {
	file    string
	table   atomic.Pointer[map[schema.GroupResource]*chain]
	plugins atomic.Pointer[[]*kms]
	counts  *counts
	text    []byte // of the file, as taken over last
}

// Load reads an EncryptionConfiguration.
func Load(file string) (*Keys, error) {
	k := &Keys{file: file, counts: newCounts()}
	k.plugins.Store(&[]*kms{})
	_, err := k.load()
	return k, err
}

// load takes the file over if it has changed.
func (k *Keys) load() (changed bool, err error) {
	data, err := os.ReadFile(k.file)
	if err != nil {
		return false, err
	}
	if k.text != nil && bytes.Equal(data, k.text) {
		return false, nil
	}
	old := *k.plugins.Load()
	p := &parser{have: old, counts: k.counts}
	t, err := p.parse(data)
	if err == nil && k.text != nil {
		err = ill(p.plugins) // those in use may be well
	}
	if err != nil {
		closeBut(p.plugins, old)
		return false, fmt.Errorf("read %s: %w", k.file, err)
	}
	if k.text == nil {
		if err := ill(p.plugins); err != nil { // it may come later than the server
			slog.Warn("kms plugin failed health check probe", "err", err)
		}
	}
	k.table.Store(&t)
	k.plugins.Store(&p.plugins)
	k.text = data
	k.counts.setConfig(data)
	closeBut(old, p.plugins)
	return true, nil
}

// closeBut closes the plugins that are not kept, once nobody asks them any more.
func closeBut(plugins, kept []*kms) {
	for _, p := range plugins {
		if !slices.Contains(kept, p) {
			run.AfterFunc("KMS plugin: close", 2*p.timeout, func() { p.conn.Close() })
		}
	}
}

// ill says which plugins are not well.
func ill(plugins []*kms) error {
	var errs []error
	for i, p := range plugins {
		if err := p.check(); err != nil {
			errs = append(errs, fmt.Errorf("kms-provider-%d: %w", i, err))
		}
	}
	return errors.Join(errs...)
}

// Plugins reports whether there are any.
func (k *Keys) Plugins() bool { return len(*k.plugins.Load()) > 0 }

// Check says how the plugins are.
func (k *Keys) Check() error { return ill(*k.plugins.Load()) }

// Collectors are what is counted of keys.
func (k *Keys) Collectors() []prometheus.Collector { return k.counts.all() }

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

// A parser reads one configuration. Plugins that are there already are kept.
type parser struct {
	have, plugins []*kms
	counts        *counts
	names         []string
}

func (p *parser) parse(data []byte) (map[schema.GroupResource]*chain, error) {
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
		more, wrong := p.links(entry.Providers, at.Child("providers"))
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
func (p *parser) links(providers []apiserverv1.ProviderConfiguration, at *field.Path) (out []link, errs field.ErrorList) {
	if len(providers) == 0 {
		return nil, field.ErrorList{atLeastOne(at, at)}
	}
	for i, one := range providers {
		at := at.Index(i)
		var given []string
		keys := map[string][]apiserverv1.Key{}
		if one.AESCBC != nil {
			given, keys["aescbc"] = append(given, "aescbc"), one.AESCBC.Keys
		}
		if one.AESGCM != nil {
			given, keys["aesgcm"] = append(given, "aesgcm"), one.AESGCM.Keys
		}
		if one.Secretbox != nil {
			given, keys["secretbox"] = append(given, "secretbox"), one.Secretbox.Keys
		}
		if one.Identity != nil {
			given = append(given, "identity")
		}
		if one.KMS != nil {
			given = append(given, "kms")
		}
		switch {
		case len(given) == 0:
			errs = append(errs, field.Invalid(at, "", "provider does not contain any of the expected providers: KMS, AESGCM, AESCBC, Secretbox, Identity"))
		case len(given) > 1:
			errs = append(errs, field.Invalid(at, strings.Join(given, ", "), "more than one provider specified in a single element, should split into different list elements"))
		case given[0] == "kms":
			plugin, wrong := p.plugin(one.KMS, at.Child("kms"))
			errs = append(errs, wrong...)
			out = append(out, link{"k8s:enc:kms:v2:" + one.KMS.Name + ":", plugin})
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

// pluginTime is how long a plugin has to answer that the file does not say.
const pluginTime = 3 * time.Second

// plugin is the KMS plugin of an entry.
func (p *parser) plugin(c *apiserverv1.KMSConfiguration, at *field.Path) (*kms, field.ErrorList) {
	var errs field.ErrorList
	if c.Timeout == nil {
		c.Timeout = &metav1.Duration{Duration: pluginTime}
	}
	switch name, at := c.Name, at.Child("name"); {
	case name == "":
		errs = append(errs, field.Required(at, "name is a mandatory field for a provider"))
	case strings.Contains(name, ":"):
		errs = append(errs, field.Invalid(at, name, fmt.Sprintf("invalid KMS provider name %s, must not contain ':'", name)))
	case slices.Contains(p.names, name):
		errs = append(errs, field.Invalid(at, name, fmt.Sprintf("duplicate KMS provider name %s, names must be unique", name)))
	}
	p.names = append(p.names, c.Name)
	if c.Timeout.Duration <= 0 {
		errs = append(errs, field.Invalid(at.Child("timeout"), c.Timeout, "timeout should be a positive value"))
	}
	endpoint := at.Child("endpoint")
	if u, err := url.Parse(c.Endpoint); c.Endpoint == "" {
		errs = append(errs, field.Invalid(endpoint, "", "endpoint is a mandatory field for a kms"))
	} else if err != nil {
		errs = append(errs, field.Invalid(endpoint, c.Endpoint, fmt.Sprintf("invalid endpoint for kms provider, error: %v", err)))
	} else if u.Scheme != "unix" {
		errs = append(errs, field.Invalid(endpoint, c.Endpoint, fmt.Sprintf("unsupported scheme %q for KMS provider, only unix is supported", u.Scheme)))
	}
	switch c.APIVersion {
	case "v2":
		if c.CacheSize != nil {
			errs = append(errs, field.Invalid(at.Child("cachesize"), *c.CacheSize, "cachesize is not supported in v2"))
		}
	case "", "v1":
		errs = append(errs, field.Forbidden(at.Child("apiVersion"), "KMSv1 is deprecated and will only receive security updates going forward. Use KMSv2 instead."))
	default:
		errs = append(errs, field.Invalid(at.Child("apiVersion"), c.APIVersion, "unsupported apiVersion apiVersion for KMS provider, only v1 and v2 are supported"))
	}
	if len(errs) > 0 {
		return nil, errs
	}
	for _, have := range p.have {
		if have.name == c.Name && have.socket == c.Endpoint && have.timeout == c.Timeout.Duration {
			p.plugins = append(p.plugins, have)
			return have, nil
		}
	}
	k, err := newKMS(c, p.counts)
	if err != nil {
		return nil, field.ErrorList{field.Invalid(endpoint, c.Endpoint, err.Error())}
	}
	p.plugins = append(p.plugins, k)
	return k, nil
}
