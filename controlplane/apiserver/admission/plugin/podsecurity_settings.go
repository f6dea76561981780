package plugin

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
	securityapi "k8s.io/pod-security-admission/admission/api"
	securityv1 "k8s.io/pod-security-admission/admission/api/v1"
	"k8s.io/pod-security-admission/admission/api/validation"
	"k8s.io/pod-security-admission/api"

	"knarr/controlplane/apiserver/admission"
)

// podSecuritySettings are what holds where a namespace does not say, and who is
// not judged.
type podSecuritySettings struct {
	defaults                   api.Policy
	users, namespaces, classes []string
}

var privileged = api.LevelVersion{Level: api.LevelPrivileged, Version: api.LatestVersion()}.String()

// everythingGoes is the policy where nobody says anything.
func everythingGoes() api.Policy {
	lv := api.LevelVersion{Level: api.LevelPrivileged, Version: api.LatestVersion()}
	return api.Policy{Enforce: lv, Audit: lv, Warn: lv}
}

// exempt is why a write is not judged, empty if it is.
func (s *podSecuritySettings) exempt(a *admission.Attributes) string {
	switch {
	case len(s.namespaces) > 0 && slices.Contains(s.namespaces, a.Namespace):
		return "namespace"
	case len(s.users) > 0 && a.User != nil && slices.Contains(s.users, a.User.GetName()):
		return "user"
	}
	return ""
}

var podSecurityKinds = []schema.GroupVersionKind{
	{Group: securityapi.GroupName, Version: "v1", Kind: "PodSecurityConfiguration"},
	{Group: securityapi.GroupName, Version: "v1beta1", Kind: "PodSecurityConfiguration"},
	{Group: securityapi.GroupName, Version: "v1alpha1", Kind: "PodSecurityConfiguration"},
}

func readPodSecurity(s *Settings, data []byte) error {
	if len(data) == 0 {
		return nil
	}
	var config securityv1.PodSecurityConfiguration
	if err := decode(data, &config, podSecurityKinds...); err != nil {
		return err
	}
	securityv1.SetDefaults_PodSecurityDefaults(&config.Defaults)
	var hub securityapi.PodSecurityConfiguration
	if err := securityv1.Convert_v1_PodSecurityConfiguration_To_api_PodSecurityConfiguration(&config, &hub, nil); err != nil {
		return err
	}
	defaults, err := securityapi.ToPolicy(hub.Defaults)
	if err != nil {
		return fmt.Errorf("PodSecurity configuration error: %w", err)
	}
	if errs := validation.ValidatePodSecurityConfiguration(&hub); len(errs) > 0 {
		return fmt.Errorf("PodSecurity invalid: %w", errs.ToAggregate())
	}
	s.podSecurity = &podSecuritySettings{defaults, hub.Exemptions.Usernames, hub.Exemptions.Namespaces, hub.Exemptions.RuntimeClasses}
	return nil
}
