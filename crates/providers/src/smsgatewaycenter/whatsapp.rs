//! The fields of a WhatsApp message: text only, to one recipient. Sender and DLT ids are SMS's and stay away.

use form_urlencoded::Serializer;
use sendonce_core::provider::SendRequest;

pub(super) fn fields(form: &mut Serializer<'static, String>, request: &SendRequest, waba_number: &str) {
    form.append_pair("wabaNumber", waba_number);
    for recipient in &request.recipients {
        form.append_pair("mobile", recipient.expose());
    }
    form.append_pair("msgType", "text");
    form.append_pair("msg", request.body.expose());
}
