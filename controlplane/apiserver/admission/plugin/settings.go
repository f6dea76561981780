package plugin

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	quotaconfig "k8s.io/apiserver/pkg/admission/plugin/resourcequota/apis/resourcequota/v1"
	apiserverv1 "k8s.io/apiserver/pkg/apis/apiserver/v1"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"knarr/controlplane/apiserver/admission/webhook"
)

// Settings are what the configuration of admission says to the plugins that
// need configuration. The zero value has none.
type Settings struct {
	// NotReadySeconds and UnreachableSeconds are how long a pod that does not
	// say stays on a node that is so. Default 300.
	NotReadySeconds, UnreachableSeconds *int64

	eventRates           []eventRate
	imagePolicy          *imagePolicy
	podNodeSelectors     map[string]string
	podSecurity          *podSecuritySettings
	podTolerations       podTolerations
	limitedResources     []quotaconfig.LimitedResource
	mutating, validating *webhook.Credentials
}

// A podTolerations is what pods get and may have where their namespace does not
// say.
type podTolerations struct{ defaults, whitelist []corev1.Toleration }

// readers read the plugins' configurations, in the table's order; without one,
// data is empty.
var readers = []struct {
	plugin string
	read   func(s *Settings, data []byte) error
}{
	{"ImagePolicyWebhook", readImagePolicy},
	{"PodSecurity", readPodSecurity},
	{"PodNodeSelector", readPodNodeSelectors},
	{"PodTolerationRestriction", readPodTolerations},
	{"EventRateLimit", readEventRates},
	{"MutatingAdmissionWebhook", func(s *Settings, data []byte) (err error) { s.mutating, err = readWebhooks(data); return err }},
	{"ValidatingAdmissionWebhook", func(s *Settings, data []byte) (err error) { s.validating, err = readWebhooks(data); return err }},
	{"ResourceQuota", readLimitedResources},
}

// Load checks which plugins are to run and reads what a file, if there is one,
// tells them.
func Load(file string, enable, disable []string) (s Settings, err error) {
	if err := Check(enable, disable); err != nil {
		return s, err
	}
	sections := map[string][]byte{}
	if file != "" {
		if sections, err = readSections(file); err != nil {
			return s, fmt.Errorf("admission control configuration %s: %w", file, err)
		}
	}
	for _, r := range readers {
		if !runs(r.plugin, enable, disable) {
			continue
		}
		if err := r.read(&s, sections[r.plugin]); err != nil {
			where := file
			if file == "" {
				where = "without --admission-control-config-file"
			}
			return s, fmt.Errorf("admission control configuration %s: couldn't init admission plugin %q: %w", where, r.plugin, err)
		}
	}
	return s, nil
}

var admissionKinds = []schema.GroupVersionKind{
	{Group: "apiserver.config.k8s.io", Version: "v1", Kind: "AdmissionConfiguration"},
	{Group: "apiserver.k8s.io", Version: "v1alpha1", Kind: "AdmissionConfiguration"},
}

// readSections are the configurations in a file, by plugin.
func readSections(file string) (map[string][]byte, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	sections := map[string][]byte{}
	for key, plugin := range map[string]string{"imagePolicy": "ImagePolicyWebhook", "podNodeSelectorPluginConfig": "PodNodeSelector"} {
		// Before there was a kind, a file was for these plugins alone.
		var old map[string]json.RawMessage
		if err := yaml.Unmarshal(data, &old); err == nil && old["kind"] == nil && old["apiVersion"] == nil && old[key] != nil {
			sections[plugin] = data
		}
	}
	if len(sections) > 0 {
		return sections, nil
	}
	var config apiserverv1.AdmissionConfiguration
	if err := decode(data, &config, admissionKinds...); err != nil {
		return nil, err
	}
	for i, p := range config.Plugins {
		at := field.NewPath("plugins").Index(i)
		if !known(p.Name) {
			return nil, field.NotSupported(at.Child("name"), p.Name, names())
		}
		switch {
		case sections[p.Name] != nil: // the first counts
		case p.Configuration != nil:
			sections[p.Name] = p.Configuration.Raw
		case p.Path != "":
			path := p.Path
			if !filepath.IsAbs(path) {
				path = filepath.Join(filepath.Dir(file), path)
			}
			if sections[p.Name], err = os.ReadFile(path); err != nil {
				return nil, field.Invalid(at.Child("path"), p.Path, err.Error())
			}
		}
	}
	return sections, nil
}

// decode reads data, YAML or JSON, strictly into one of kinds.
func decode(data []byte, into any, kinds ...schema.GroupVersionKind) error {
	data, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return err
	}
	var kind struct{ APIVersion, Kind string }
	if err := json.Unmarshal(data, &kind); err != nil {
		return err
	}
	gv, err := schema.ParseGroupVersion(kind.APIVersion)
	if err != nil {
		return err
	}
	want := fmt.Sprintf("write kind: %s and apiVersion: %s", kinds[0].Kind, kinds[0].GroupVersion())
	switch {
	case kind.APIVersion == "":
		return errors.New("Object 'apiVersion' is missing; " + want)
	case kind.Kind == "":
		return errors.New("Object 'Kind' is missing; " + want)
	case !slices.Contains(kinds, gv.WithKind(kind.Kind)):
		return fmt.Errorf("no kind %q is registered for version %q; %s", kind.Kind, kind.APIVersion, want)
	}
	return decodeStrict(data, into)
}

// decodeStrict reads JSON, refusing fields that there are not.
func decodeStrict(data []byte, into any) error {
	wrong, err := kjson.UnmarshalStrict(data, into)
	if err == nil && len(wrong) > 0 {
		err = runtime.NewStrictDecodingError(wrong)
	}
	return err
}

var webhookKinds = []schema.GroupVersionKind{
	{Group: "apiserver.config.k8s.io", Version: "v1", Kind: "WebhookAdmissionConfiguration"},
	{Group: "apiserver.config.k8s.io", Version: "v1alpha1", Kind: "WebhookAdmission"},
}

func readWebhooks(data []byte) (*webhook.Credentials, error) {
	if len(data) == 0 {
		return nil, nil
	}
	var config struct {
		APIVersion         string `json:"apiVersion"`
		Kind               string `json:"kind"`
		KubeConfigFile     string `json:"kubeConfigFile"`
		StaticManifestsDir string `json:"staticManifestsDir"`
	}
	if err := decode(data, &config, webhookKinds...); err != nil {
		return nil, err
	}
	at := field.NewPath("kubeConfigFile")
	switch {
	case config.KubeConfigFile != "" && !filepath.IsAbs(config.KubeConfigFile):
		return nil, field.Invalid(at, config.KubeConfigFile, "must be an absolute file path")
	case config.StaticManifestsDir != "":
		return nil, field.Forbidden(field.NewPath("staticManifestsDir"), "staticManifestsDir requires the ManifestBasedAdmissionControlConfig feature gate to be enabled")
	case config.KubeConfigFile == "":
		return nil, nil
	}
	credentials, err := webhook.LoadCredentials(config.KubeConfigFile)
	if err != nil {
		return nil, field.Invalid(at, config.KubeConfigFile, err.Error())
	}
	return credentials, nil
}

var quotaKinds = []schema.GroupVersionKind{
	{Group: "apiserver.config.k8s.io", Version: "v1", Kind: "ResourceQuotaConfiguration"},
	{Group: "resourcequota.admission.k8s.io", Version: "v1beta1", Kind: "Configuration"},
	{Group: "resourcequota.admission.k8s.io", Version: "v1alpha1", Kind: "Configuration"},
}

func readLimitedResources(s *Settings, data []byte) error {
	if len(data) == 0 {
		return nil
	}
	var config quotaconfig.Configuration
	if err := decode(data, &config, quotaKinds...); err != nil {
		return err
	}
	var errs field.ErrorList
	for i, l := range config.LimitedResources {
		if l.Resource == "" {
			errs = append(errs, field.Required(field.NewPath("limitedResources").Index(i).Child("resource"), ""))
		}
	}
	s.limitedResources = config.LimitedResources
	return errs.ToAggregate()
}
