package baremetal

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"
)

// maxFile bounds the file: a hundred bytes for each of 100,000 machines.
const maxFile = 10 << 20

// A list is what the file holds.
type list struct {
	Instances []instance `json:"instances"`
}

// An instance is one machine.
type instance struct {
	// Name is that of its Node.
	Name string `json:"name"`
	// ProviderID becomes the Node's spec.providerID. Default knarr://NAME.
	ProviderID string `json:"providerID,omitempty"`
	// Addresses become the Node's. Default: those that the kubelet has given it.
	Addresses []corev1.NodeAddress `json:"addresses,omitempty"`
	// InstanceType, Zone and Region become labels of the Node; Labels are more of them.
	InstanceType string            `json:"instanceType,omitempty"`
	Zone         string            `json:"zone,omitempty"`
	Region       string            `json:"region,omitempty"`
	Labels       map[string]string `json:"labels,omitempty"`
	// Exists false says that the machine is gone for good: its Node is deleted once it is
	// not ready. Default true.
	Exists *bool `json:"exists,omitempty"`
	// Shutdown says that the machine is there and switched off.
	Shutdown bool `json:"shutdown,omitempty"`
}

// read reads and checks the file.
func read(file string) (*list, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxFile {
		return nil, fmt.Errorf("%s is larger than %d bytes", file, maxFile)
	}
	l, err := parse(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return l, nil
}

// parse refuses what it does not know: a misspelt field is a machine that is not as
// its file says. Pure.
func parse(b []byte) (*list, error) {
	var l list
	if err := yaml.UnmarshalStrict(b, &l); err != nil {
		return nil, err
	}
	if l.Instances == nil { // a file that was cut off at its beginning is not one of no machines
		return nil, errors.New("no instances; give the list instances, empty if there are none")
	}
	var errs field.ErrorList
	names, ids := map[string]bool{}, map[string]bool{}
	for i := range l.Instances {
		in, at := &l.Instances[i], field.NewPath("instances").Index(i)
		if in.ProviderID == "" {
			in.ProviderID = scheme + in.Name
		}
		errs = append(errs, in.validate(at)...)
		switch {
		case names[in.Name]:
			errs = append(errs, field.Duplicate(at.Child("name"), in.Name))
		case ids[in.ProviderID]:
			errs = append(errs, field.Duplicate(at.Child("providerID"), in.ProviderID))
		}
		names[in.Name], ids[in.ProviderID] = true, true
	}
	return &l, errs.ToAggregate()
}

var addressTypes = []corev1.NodeAddressType{corev1.NodeHostName, corev1.NodeInternalIP, corev1.NodeExternalIP, corev1.NodeInternalDNS, corev1.NodeExternalDNS}

func (in *instance) validate(at *field.Path) (errs field.ErrorList) {
	for _, why := range validation.IsDNS1123Subdomain(in.Name) {
		errs = append(errs, field.Invalid(at.Child("name"), in.Name, why))
	}
	for i, a := range in.Addresses {
		at := at.Child("addresses").Index(i)
		if !slices.Contains(addressTypes, a.Type) {
			errs = append(errs, field.NotSupported(at.Child("type"), a.Type, addressTypes))
		}
		_, err := netip.ParseAddr(a.Address)
		if isIP := a.Type == corev1.NodeInternalIP || a.Type == corev1.NodeExternalIP; a.Address == "" || isIP && err != nil {
			errs = append(errs, field.Invalid(at.Child("address"), a.Address, "must be an address of its type"))
		}
	}
	for name, value := range map[string]string{"instanceType": in.InstanceType, "zone": in.Zone, "region": in.Region} {
		for _, why := range validation.IsValidLabelValue(value) {
			errs = append(errs, field.Invalid(at.Child(name), value, why))
		}
	}
	return append(errs, metav1validation.ValidateLabels(in.Labels, at.Child("labels"))...)
}
