package registry

import (
	"context"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/kubernetes/scheme"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

var apiServices = inScheme(apiregistrationv1.AddToScheme, &Kind[*apiregistrationv1.APIService]{
	GroupVersionKind: apiregistrationv1.SchemeGroupVersion.WithKind("APIService"),
	Plural:           "apiservices",
	Metadata:         Plain,
	RecheckName:      true,
	Categories:       []string{"api-extensions"},
	Prefix:           "apiregistration.k8s.io/apiservices",
	Cluster:          true,
	Conditional:      true,
	JSON:             true,
	NameRuleOf:       apiServiceName,

	Default: func(s *apiregistrationv1.APIService) {
		if s.Spec.Service != nil && s.Spec.Service.Port == nil {
			s.Spec.Service.Port = new(int32(443))
		}
	},
	Prepare: func(_ context.Context, s, old *apiregistrationv1.APIService) {
		if old != nil {
			s.Status = old.Status
			return
		}
		s.Status = apiregistrationv1.APIServiceStatus{}
		if s.Spec.Service == nil {
			s.Status.Conditions = []apiregistrationv1.APIServiceCondition{{
				Type: apiregistrationv1.Available, Status: apiregistrationv1.ConditionTrue, LastTransitionTime: metav1.Now(),
				Reason: "Local", Message: "Local APIServices are always available",
			}}
		}
	},
	Validate: func(_ context.Context, s, _ *apiregistrationv1.APIService) field.ErrorList {
		return validateAPIService(s)
	},
	Columns: []Column[*apiregistrationv1.APIService]{
		nameColumn[*apiregistrationv1.APIService](),
		column("Service", "string", "The reference to the service that hosts this API endpoint.", 0, func(s *apiregistrationv1.APIService) any {
			if ref := s.Spec.Service; ref != nil {
				return ref.Namespace + "/" + ref.Name
			}
			return "Local"
		}),
		column("Available", "string", "Whether this service is available.", 0, func(s *apiregistrationv1.APIService) any {
			for _, c := range s.Status.Conditions {
				switch {
				case c.Type != apiregistrationv1.Available:
				case c.Status != apiregistrationv1.ConditionTrue && c.Reason != "":
					return fmt.Sprintf("%s (%s)", c.Status, c.Reason)
				default:
					return string(c.Status)
				}
			}
			return string(apiregistrationv1.ConditionUnknown)
		}),
		ageColumn[*apiregistrationv1.APIService](),
	},
	Sub: []Subresource[*apiregistrationv1.APIService]{
		statusOf(func(s, old *apiregistrationv1.APIService) {
			s.Spec, s.Labels, s.Annotations = old.Spec, old.Labels, old.Annotations
			s.Finalizers, s.OwnerReferences = old.Finalizers, old.OwnerReferences
		}, func(_ context.Context, s, _ *apiregistrationv1.APIService) field.ErrorList {
			f := &faults{}
			for i, c := range s.Status.Conditions {
				among(f, c.Status, field.NewPath("status", "conditions").Index(i).Child("status"),
					apiregistrationv1.ConditionTrue, apiregistrationv1.ConditionFalse, apiregistrationv1.ConditionUnknown)
			}
			return f.list
		}),
	},
})

// inScheme makes a kind that client-go does not know one of its own.
func inScheme[T Object](add func(*runtime.Scheme) error, k *Kind[T]) *Kind[T] {
	if err := add(scheme.Scheme); err != nil {
		panic(err) // the table is wrong: every test finds it
	}
	return k
}

// apiServiceName follows from the spec.
func apiServiceName(s *apiregistrationv1.APIService) func(string, bool) []string {
	want := s.Spec.Version + "." + s.Spec.Group
	return func(name string, _ bool) []string {
		if msgs := NameIsPathSegment(name, false); len(msgs) > 0 {
			return msgs
		}
		if name != want {
			return []string{fmt.Sprintf("must be `spec.version+\".\"+spec.group`: %q", want)}
		}
		return nil
	}
}

func validateAPIService(s *apiregistrationv1.APIService) field.ErrorList {
	f := &faults{}
	at, spec := field.NewPath("spec"), &s.Spec
	if spec.Group == "" && spec.Version != "v1" {
		f.required(at.Child("group"), "only v1 may have an empty group and it better be legacy kube")
	}
	if spec.Group != "" {
		f.add(dnsSubdomain(spec.Group, at.Child("group")))
	}
	f.add(invalid(utilvalidation.IsDNS1035Label(spec.Version), spec.Version, at.Child("version")))
	if n := spec.GroupPriorityMinimum; n <= 0 || n > 20000 {
		f.invalid(at.Child("groupPriorityMinimum"), n, "must be positive and less than 20000")
	}
	if n := spec.VersionPriority; n <= 0 || n > 1000 {
		f.invalid(at.Child("versionPriority"), n, "must be positive and less than 1000")
	}
	if spec.Service == nil {
		if len(spec.CABundle) != 0 {
			f.invalid(at.Child("caBundle"), fmt.Sprintf("%d bytes", len(spec.CABundle)), "local APIServices may not have a caBundle")
		}
		if spec.InsecureSkipTLSVerify {
			f.invalid(at.Child("insecureSkipTLSVerify"), true, "local APIServices may not have insecureSkipTLSVerify")
		}
		return f.list
	}
	service := at.Child("service")
	if spec.Service.Namespace == "" {
		f.required(service.Child("namespace"), "")
	}
	if spec.Service.Name == "" {
		f.required(service.Child("name"), "")
	}
	port := deref(spec.Service.Port, 443)
	if msgs := utilvalidation.IsValidPortNum(int(port)); msgs != nil {
		f.invalid(service.Child("port"), port, "port is not valid: "+strings.Join(msgs, ", "))
	}
	if spec.InsecureSkipTLSVerify && len(spec.CABundle) > 0 {
		f.invalid(at.Child("insecureSkipTLSVerify"), true, "may not be true if caBundle is present")
	}
	return f.list
}
