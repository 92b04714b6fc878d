//! The fields of an SMS.

use form_urlencoded::Serializer;
use sendonce_core::domain::message::Encoding;
use sendonce_core::provider::SendRequest;

/// Spellings matter: `duplicateCheck` is accepted and ignored.
pub(super) fn fields(form: &mut Serializer<'static, String>, request: &SendRequest) {
    let recipients: Vec<&str> = request.recipients.iter().map(|recipient| recipient.expose()).collect();
    form.append_pair("mobile", &recipients.join(","));
    form.append_pair("msg", request.body.expose());
    form.append_pair(
        "msgType",
        match request.encoding {
            Encoding::Gsm7 => "text",
            Encoding::Ucs2 => "unicode",
        },
    );
    form.append_pair("duplicatecheck", "true");
    let optional = [
        ("senderid", &request.sender_id),
        ("dltEntityId", &request.dlt_entity_id),
        ("dltTemplateId", &request.dlt_template_id),
    ];
    for (name, value) in optional {
        if let Some(value) = value {
            form.append_pair(name, value);
        }
    }
}
