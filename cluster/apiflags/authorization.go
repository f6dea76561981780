package apiflags

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiserverapi "k8s.io/apiserver/pkg/apis/apiserver"

	"knarr/controlplane/apiserver/structured"
)

// authorization holds the values of the flags that configure authorisation.
type authorization struct {
	file, policies, webhook, version string
	modes                            []string
	allowedTTL, elseTTL              time.Duration

	config *structured.Authorization
}

func (a *authorization) bind(f *pflag.FlagSet) {
	f.StringVar(&a.file, "authorization-config", "", "`file` that says which authorisers are asked, in which order; followed")
	f.StringSliceVar(&a.modes, "authorization-mode", []string{structured.Node, structured.RBAC}, "`modes` of authorisation, in their order: "+strings.Join(structured.Modes, ", "))
	f.StringVar(&a.policies, "authorization-policy-file", "", "`file` of policies, one a line, for the mode ABAC")
	f.StringVar(&a.webhook, "authorization-webhook-config-file", "", "kubeconfig `file` of the webhook for the mode Webhook")
	f.StringVar(&a.version, "authorization-webhook-version", "v1beta1", "`version` of the SubjectAccessReviews it is sent: v1 or v1beta1")
	f.DurationVar(&a.allowedTTL, "authorization-webhook-cache-authorized-ttl", 5*time.Minute, "`time` to remember what it allowed; 0 is not at all")
	f.DurationVar(&a.elseTTL, "authorization-webhook-cache-unauthorized-ttl", 30*time.Second, "`time` to remember what it did not allow; 0 is not at all")
}

// load judges the flags and reads the files that they name. given says that a
// flag was.
func (a *authorization) load(given func(string) bool) (err error) {
	if a.file != "" {
		if slices.ContainsFunc([]string{"mode", "webhook-config-file", "webhook-version", "webhook-cache-authorized-ttl", "webhook-cache-unauthorized-ttl"},
			func(name string) bool { return given("authorization-" + name) }) {
			return errors.New("--authorization-config can not be specified when --authorization-mode or --authorization-webhook-* flags are defined")
		}
		if a.config, err = structured.ReadAuthorization(a.file); err != nil {
			return fmt.Errorf("--authorization-config: %w", err)
		}
		a.config.Policies = a.policies
		return nil
	}
	if err := joined(a.validate()); err != nil {
		return err
	}
	if slices.Equal(a.modes, []string{structured.Node, structured.RBAC}) {
		return nil // the default
	}
	config := &apiserverapi.AuthorizationConfiguration{}
	for _, mode := range a.modes {
		z := apiserverapi.AuthorizerConfiguration{Type: apiserverapi.AuthorizerType(mode), Name: strings.ToLower(mode)}
		if mode == structured.Webhook {
			z.Name, z.Webhook = "default", a.hook()
		}
		config.Authorizers = append(config.Authorizers, z)
	}
	a.config = &structured.Authorization{AuthorizationConfiguration: config, Policies: a.policies}
	return nil
}

func (a *authorization) hook() *apiserverapi.WebhookConfiguration {
	return &apiserverapi.WebhookConfiguration{
		AuthorizedTTL: metav1.Duration{Duration: a.allowedTTL}, CacheAuthorizedRequests: a.allowedTTL != 0,
		UnauthorizedTTL: metav1.Duration{Duration: a.elseTTL}, CacheUnauthorizedRequests: a.elseTTL != 0,
		Timeout: metav1.Duration{Duration: 30 * time.Second}, FailurePolicy: apiserverapi.FailurePolicyNoOpinion,
		SubjectAccessReviewVersion: a.version,
		ConnectionInfo: apiserverapi.WebhookConnectionInfo{
			Type: apiserverapi.AuthorizationWebhookConnectionInfoTypeKubeConfigFile, KubeConfigFile: &a.webhook,
		},
	}
}

// validate judges the flags that a file would replace.
func (a *authorization) validate() (errs []error) {
	if len(a.modes) == 0 {
		errs = append(errs, errors.New("at least one authorization-mode must be passed"))
	}
	has := func(mode string) bool { return slices.Contains(a.modes, mode) }
	for _, mode := range a.modes {
		switch {
		case !slices.Contains(structured.Modes, mode):
			errs = append(errs, fmt.Errorf("authorization-mode %q is not a valid mode", mode))
		case mode == structured.ABAC && a.policies == "":
			errs = append(errs, errors.New("authorization-mode ABAC's authorization policy file not passed"))
		case mode == structured.Webhook && a.webhook == "":
			errs = append(errs, errors.New("authorization-mode Webhook's authorization config file not passed"))
		}
	}
	if a.policies != "" && !has(structured.ABAC) {
		errs = append(errs, errors.New("cannot specify --authorization-policy-file without mode ABAC"))
	}
	if a.webhook != "" && !has(structured.Webhook) {
		errs = append(errs, errors.New("cannot specify --authorization-webhook-config-file without mode Webhook"))
	}
	if twice := slices.Sorted(slices.Values(a.modes)); len(slices.Compact(twice)) != len(a.modes) {
		errs = append(errs, fmt.Errorf("authorization-mode %q has mode specified more than once", a.modes))
	}
	return errs
}
