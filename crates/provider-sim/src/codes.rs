//! Response codes and delivery codes the simulator speaks. Rows marked "own choice" stand for something the provider
//! surely has but whose number no document gives (contract, sections 0 and 3).

/// A refusal as the body tells it; HTTP stays 200.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Code {
    pub number: &'static str,
    pub reason: &'static str,
}

const fn code(number: &'static str, reason: &'static str) -> Code {
    Code { number, reason }
}

pub const SUCCESS: &str = "200";
pub const BAD_FLAG: Code = code("147", "testMessage or duplicatecheck must be true or false");
pub const BAD_MSG_TYPE_FOR_TEXT: Code = code("171", "Msg Text and MsgType Mismatch");
pub const TEMPLATE_MISMATCH: Code = code("188", "DLT template mismatch");
pub const PASSWORD_REQUIRED: Code = code("214", "Parameter password required");
pub const INVALID_CREDENTIALS: Code = code("216", "Invalid credentials");
/// Own choice.
pub const BAD_SEND_METHOD: Code = code("148", "Invalid sendMethod");
/// Own choice.
pub const MOBILE_REQUIRED: Code = code("149", "Parameter mobile required");
/// Own choice.
pub const MSG_REQUIRED: Code = code("150", "Parameter msg required");
/// Own choice.
pub const SENDER_REQUIRED: Code = code("151", "Parameter senderid required");
/// Own choice.
pub const BAD_MSG_TYPE: Code = code("152", "Invalid msgType");
/// Own choice.
pub const REPORT_PARAMETER: Code = code("154", "Required parameter missing or invalid");
/// Own choice.
pub const REPORT_PATH: Code = code("155", "Unknown method for this endpoint");
/// Own choice.
pub const WABA_REQUIRED: Code = code("156", "Parameter wabaNumber required");
/// Own choice.
pub const INSUFFICIENT_BALANCE: Code = code("302", "Insufficient Balance");
/// Own choice.
pub const NO_VALID_MOBILE: Code = code("303", "No valid mobile number");
/// Own choice.
pub const THROTTLED: Code = code("305", "TPS limit exceeded");
/// In nobody's table, on purpose.
pub const UNLISTED: Code = code("777", "Request could not be processed");

/// What became of one accepted message, as receipts and reports tell it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeliveryCode {
    pub number: &'static str,
    pub delivered: bool,
    /// Status word of the SMPP family, as in `DELIVRD`.
    pub smpp: &'static str,
    /// Status word of the other family, as in `DELIVERED`.
    pub plain: &'static str,
    pub cause: &'static str,
}

const fn delivery(
    number: &'static str,
    delivered: bool,
    smpp: &'static str,
    plain: &'static str,
    cause: &'static str,
) -> DeliveryCode {
    DeliveryCode { number, delivered, smpp, plain, cause }
}

pub const DELIVERED: DeliveryCode = delivery("000", true, "DELIVRD", "DELIVERED", "Delivered");
pub const ABSENT: DeliveryCode = delivery("001", false, "UNDELIV", "FAILED", "Absent Subscriber");
pub const EXPIRED: DeliveryCode = delivery("005", false, "EXPIRED", "EXPIRED", "Validity Expired");
pub const DND: DeliveryCode = delivery("008", false, "UNDELIV", "FAILED", "DND");

pub const DELIVERY_CODES: [DeliveryCode; 4] = [DELIVERED, ABSENT, EXPIRED, DND];

/// Of a receipt that follows a WhatsApp message's delivery. Own choice.
pub const READ: &str = "100";

/// A receipt may carry it; no table explains it.
pub const UNMAPPED_DELIVERY: &str = "999";

pub fn delivery_code(number: &str) -> Option<DeliveryCode> {
    DELIVERY_CODES.into_iter().find(|code| code.number == number)
}
