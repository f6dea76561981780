package kubelet

import (
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"knarr/internal/jsonfields"
)

// decodeStatic makes a pod of a manifest, and says what of that is ignored, as upstream does:
// fields that a pod does not have, and further documents. Errors are in upstream's words.
func decodeStatic(b []byte, path, node string) (p *corev1.Pod, ignored []string, err error) {
	m, err := parseManifest(b)
	if err == nil {
		p, err = m.pod()
	}
	if err != nil {
		return nil, nil, fmt.Errorf("couldn't parse as pod(%w), please check config file", err)
	}
	p, err = asStatic(p, b, path, node, "file")
	return p, m.ignored, err
}

// A manifestText is what a manifest says, and what of it is ignored.
type manifestText struct {
	metav1.TypeMeta
	json    []byte
	ignored []string
}

// parseManifest reads the first document of a manifest, which has to name a kind of version v1.
func parseManifest(b []byte) (m manifestText, err error) {
	if m.json, err = yaml.YAMLToJSON(b); err != nil {
		return m, err
	}
	if _, err := yaml.YAMLToJSONStrict(b); err != nil { // what comes first of a field that is there twice
		m.ignored = append(m.ignored, err.Error())
	}
	if jsonfields.MoreDocuments(b) {
		m.ignored = append(m.ignored, "every document but the first: a file is one pod")
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(m.json, &m.TypeMeta); err != nil {
		return m, err
	}
	switch {
	case m.Kind == "":
		return m, errors.New("Object 'Kind' is missing") //nolint:staticcheck // upstream's words
	case m.APIVersion == "":
		return m, errors.New("Object 'apiVersion' is missing; it has to be v1") //nolint:staticcheck // upstream's words
	case slices.Contains([]string{"Pod", "PodList", "List"}, m.Kind) && m.APIVersion != "v1":
		return m, fmt.Errorf("no kind %q is registered for version %q; it has to be v1", m.Kind, m.APIVersion)
	}
	return m, nil
}

// pod is that of a manifest.
func (m *manifestText) pod() (*corev1.Pod, error) {
	if m.Kind != "Pod" {
		return nil, fmt.Errorf("invalid pod: it is of the kind %q of version %q", m.Kind, m.APIVersion)
	}
	p := &corev1.Pod{}
	return p, m.decode(p)
}

// decode reads the document as what it is.
func (m *manifestText) decode(into any) error {
	unknown, err := jsonfields.Decode(m.json, into)
	for _, u := range unknown {
		m.ignored = append(m.ignored, u.Error()+jsonfields.Hint(u, into))
	}
	return err
}

// asStatic makes a static pod of what the bytes b of a source say.
func asStatic(p *corev1.Pod, b []byte, path, node, source string) (*corev1.Pod, error) {
	switch {
	case p.Name == "":
		return nil, errors.New("invalid pod: name is needed for the pod (metadata.name)")
	case len(p.Spec.Containers) == 0:
		return nil, errors.New("invalid pod: spec.containers: Required value")
	}
	hash := shortHash(append(append([]byte(node+"\x00"+path+"\x00"), b...), p.UID...))
	if p.UID == "" {
		p.UID = types.UID(hash)
	}
	p.Name += "-" + lower(node)
	if p.Namespace == "" {
		p.Namespace = metav1.NamespaceDefault
	}
	if p.Annotations == nil {
		p.Annotations = map[string]string{}
	}
	p.Annotations[annConfigHash], p.Annotations[annConfigSource] = hash, source
	p.Annotations[annConfigSeen] = time.Now().Format(time.RFC3339Nano)
	p.Spec.NodeName = node
	p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute})
	p.Status = corev1.PodStatus{Phase: corev1.PodPending}
	setDefaults(p)
	return p, nil
}
